"""`python -m hal.testing`: what it runs, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hal.testing import SMALL, Case, __main__, conformance_cases
from hal.testing.__main__ import main

Choose = Callable[..., None]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Few cases in place of all."""

    def arrange(*cases: Case) -> None:
        monkeypatch.setattr(__main__, "conformance_cases", lambda *_: cases)

    return arrange


def test_cases_of_this_machines_backends_pass(choose: Choose, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for case in conformance_cases(__main__.find_targets("cpu")[0].backend, SMALL) if case.call == "merge_states"]
    choose(*cases)
    assert main(["--platform", "cpu"]) == 0
    assert capsys.readouterr().out == f"cpu: {len(cases)} cases\nall passed\n"
    assert cases


def test_a_case_that_fails_is_told_and_leaves_the_others(choose: Choose, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("by nothing")

    choose(Case(id="a-case", call="merge_states", check=fail), Case(id="b-case", call="merge_states", check=lambda _: None))
    assert main(["--backend", "cpu", "--profile", "small"]) == 1
    assert capsys.readouterr().out == "cpu: 2 cases\ncpu-a-case: ZeroDivisionError: by nothing\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "cpuu"], "unknown backend 'cpuu'"),
        (["--platform", "tpu"], "no backend of platform 'tpu' runs here"),
        (["--backend", "cuda:triton"], "the backend cuda:triton was asked for and"),
    ],
    ids=["unknown_backend", "unknown_platform", "absent_device"],
)
def test_what_cannot_run_here_is_refused_in_a_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
