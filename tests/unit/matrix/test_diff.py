"""Two support tables compared, and the command's exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hal.cli import main
from hal.matrix.cells import Cell
from hal.matrix.diff import compare_tables
from hal.matrix.support_file import to_text

SERVED = Cell(
    model="a-model",
    target="cuda:sm_90",
    dtype="bfloat16",
    kv_layout="auto",
    feature="",
    backends=("cuda:triton",),
    providers={"cuda:triton": ("write_cache", "paged_attention")},
    state="emulated",
    bytes_per_token=128,
    reasons=(),
)
UNSERVED = replace(SERVED, backends=(), providers={}, state="unsupported", bytes_per_token=0, reasons=("cuda:triton: no",))
PROVIDED = replace(SERVED, providers={"cuda:triton": ("write_cache",), "cuda:flash_attention": ("paged_attention",)})

CHANGES = {
    "nothing": (SERVED, SERVED, None, False),
    "served_no_more": (SERVED, UNSERVED, "worse", True),
    "served_now": (UNSERVED, SERVED, "better", False),
    "proved_less": (SERVED, replace(SERVED, state="declared"), "worse", True),
    "proved_more": (SERVED, replace(SERVED, state="verified"), "better", False),
    "more_bytes": (SERVED, replace(SERVED, bytes_per_token=256), "worse", True),
    "fewer_bytes": (SERVED, replace(SERVED, bytes_per_token=64), "better", False),
    "another_provider": (SERVED, PROVIDED, "other", False),
    "another_backend": (SERVED, replace(SERVED, backends=("cuda:flash_attention",)), "other", False),
    "another_reason": (UNSERVED, replace(UNSERVED, reasons=("cuda:triton: never",)), "other", False),
    "gone": (SERVED, replace(SERVED, model="another"), "gone", True),
}


@pytest.mark.parametrize(("old", "new", "kind", "regressed"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("form", [(), ("--markdown",)], ids=["text", "markdown"])
def test_a_change_is_told_and_a_regression_fails(
    old: Cell,
    new: Cell,
    kind: str | None,
    regressed: bool,
    form: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    diff = compare_tables({old.key: old}, {new.key: new})
    assert [name for name, _ in diff.sections() if name != "new"] == ([] if kind is None else [kind])
    paths = []
    for name, cell in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(to_text([cell]))
        paths.append(str(tmp_path / f"{name}.json"))
    assert main(["matrix", "diff", *paths, *form]) == int(regressed)
    text = capsys.readouterr().out
    assert (kind or "nothing changed") in text
    if kind is not None:
        assert "a-model" in text


def test_both_changes_of_one_cell_are_told() -> None:
    diff = compare_tables({SERVED.key: SERVED}, {SERVED.key: replace(SERVED, state="verified", bytes_per_token=256)})
    assert (len(diff.better), len(diff.worse)) == (1, 1)


@pytest.mark.parametrize("form", ["a_python", "an_environment", "an_environment_from_here"])
def test_an_installed_version_is_asked(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.json"
    table.write_text(to_text([SERVED]))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    asked = 'assert sys.argv[1:] == ["-m", "hal", "matrix", "--json"]'
    python.write_text(f"#!{sys.executable}\nimport sys\n{asked}\nprint(open({str(table)!r}).read())\n")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path.parent)
    given = {"a_python": str(python), "an_environment": str(tmp_path), "an_environment_from_here": tmp_path.name}[form]
    assert main(["matrix", "diff", str(table), given]) == 0
    assert "nothing changed" in capsys.readouterr().out


def test_an_installed_version_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named hal' >&2\nexit 1\n")
    python.chmod(0o755)
    assert main(["matrix", "diff", str(python), str(python)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "No module named hal" in captured.err


PARITY = {
    "schema": 1,
    "hal": "0.1.0",
    "platforms": ["a", "b"],
    "has": {"sink": ["a", "b"], "dcp": ["a"]},
    "holes": [{"feature": "dcp", "platform": "b", "reason": "because"}],
}
NEW_HOLE = {"feature": "sink", "platform": "b", "reason": "because"}
FRESH_HOLE = {**NEW_HOLE, "feature": "new"}
HOLES = {
    "nothing": (PARITY, 0, ""),
    "closed": ({**PARITY, "has": {"sink": ["a", "b"], "dcp": ["a", "b"]}, "holes": []}, 0, "1 holes -> 0"),
    "opened": (
        {**PARITY, "has": {"sink": ["a"], "dcp": ["a"]}, "holes": [*PARITY["holes"], NEW_HOLE]},
        1,
        "sink is missing on b, where",
    ),
    "gone": ({**PARITY, "has": {"dcp": ["a"]}}, 1, "sink is gone; a, b had it"),
    "a_new_feature": (
        {**PARITY, "has": {**PARITY["has"], "new": ["a"]}, "holes": [*PARITY["holes"], FRESH_HOLE]},
        0,
        "1 holes -> 2",
    ),
    "a_new_feature_without_a_reason": (
        {
            **PARITY,
            "has": {**PARITY["has"], "new": ["a"]},
            "holes": [*PARITY["holes"], {**NEW_HOLE, "feature": "new", "reason": ""}],
        },
        1,
        "new is missing on b without a reason",
    ),
}


@pytest.mark.parametrize(("new", "code", "said"), HOLES.values(), ids=HOLES)
def test_holes_may_only_be_closed(
    new: dict[str, object], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.json").write_text(json.dumps(PARITY))
    (tmp_path / "new.json").write_text(json.dumps(new))
    assert main(["matrix", "diff", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == code
    assert said in capsys.readouterr().out
