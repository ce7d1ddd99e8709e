"""Report files: what a run of a suite writes, what is read from them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hal.common.backends.registry import backends, platforms
from hal.common.contract.backend import CALLS
from hal.matrix.proof import parse_report, read_evidence

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from hal.testing import Case

CASES = ["kv-float32-good", "kv-bfloat16-good", "latent-float32-bad"]

@pytest.mark.parametrize("name", CASES)
def test_case(name, prove):
    call = "write_cache" if name.startswith("kv") else "gather_cache"
    case = Case(call=call, id=f"{call}-{name}", check=lambda backend: None)
    prove(case, backend="some:backend", arch="an_arch", state="STATE", means="an interpreter")
    assert "good" in name

def test_something_else():
    pass
"""


def run_suite(pytester: pytest.Pytester, *arguments: str, state: str = "emulated") -> pytest.RunResult:
    pytester.makepyfile(test_suite=SUITE.replace("STATE", state))
    return pytester.runpytest_inprocess("-p", "hal.testing.proof", "--proof", "report-x.json", *arguments)


def test_a_run_writes_what_its_cases_prove(pytester: pytest.Pytester) -> None:
    run_suite(pytester).assert_outcomes(passed=3, failed=1)
    text = (pytester.path / "report-x.json").read_text()
    report = json.loads(text)
    assert report["commit"] == "unknown"
    (row,) = report["rows"]
    assert (row["suite"], row["state"], row["means"]) == ("test_suite.py", "emulated", "an interpreter")
    assert row["device"]
    assert row["calls"]["gather_cache"] == {"passed": 0, "failed": 1, "layouts": [], "dtypes": []}
    (evidence,) = parse_report("report-x.json", text)
    assert (evidence.backend, evidence.call, evidence.passed) == ("some:backend", "write_cache", 2)
    assert (evidence.layouts, evidence.dtypes) == ({"kv"}, {"float32", "bfloat16"})


def test_a_part_of_a_suite_proves_nothing(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, "-k", "good")
    result.stderr.fnmatch_lines(["*--proof counts whole suites; 2 tests were deselected*"])
    assert result.ret != 0
    assert not (pytester.path / "report-x.json").exists()


def test_a_run_without_a_case_writes_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_something(): pass")
    result = pytester.runpytest_inprocess("-p", "hal.testing.proof", "--proof", "report-x.json")
    result.stderr.fnmatch_lines(["*no conformance case ran*"])
    assert result.ret != 0


def test_a_state_of_nobodys_is_an_error(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, state="believed")
    result.stdout.fnmatch_lines(["*a proof of state 'believed'; expected one of verified, executed*"])
    assert not (pytester.path / "report-x.json").exists()


GOOD: dict[str, Any] = {
    "schema": 1,
    "hal": "0.1.0",
    "commit": "abc",
    "date": "2026-01-31",
    "rows": [
        {
            "suite": "a",
            "backend": "b",
            "arch": "c",
            "state": "verified",
            "means": "d",
            "device": "e",
            "calls": {"write_cache": {"passed": 3, "failed": 0, "layouts": [], "dtypes": []}},
        }
    ],
}


def changed_row(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "rows": [{**GOOD["rows"][0], **changes}]}


REFUSED = {
    "no_json": ("{", "report-x.json is no JSON"),
    "a_list": ("[]", "report-x.json has"),
    "another_schema": (json.dumps({**GOOD, "schema": 2}), "has schema 2; expected 1"),
    "a_key_too_many": (json.dumps({**GOOD, "verified_by": "me"}), "verified_by"),
    "no_date": (json.dumps({key: value for key, value in GOOD.items() if key != "date"}), "'commit', 'hal'"),
    "a_state_of_no_suite": (json.dumps(changed_row(state="declared")), "has state 'declared'"),
    "no_counts": (json.dumps(changed_row(calls={"write_cache": {}})), "write_cache of report-x.json"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_report_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_report("report-x.json", text)
    assert "let the suite write it anew" in str(caught.value) or "expected one of" in str(caught.value)


@pytest.mark.parametrize(("passed", "failed", "count"), [(3, 0, 1), (3, 1, 0), (0, 0, 0)])
def test_a_call_with_a_failed_case_is_not_proved(passed: int, failed: int, count: int) -> None:
    counts = {"passed": passed, "failed": failed, "layouts": [], "dtypes": []}
    assert len(parse_report("report-x.json", json.dumps(changed_row(calls={"write_cache": counts})))) == count


def test_reports_of_this_checkout_speak_of_what_is_registered() -> None:
    archs = {(name, arch.name) for name, platform in platforms().items() for arch in platform.archs()}
    for evidence in read_evidence():
        assert evidence.backend in backends()
        assert (backends()[evidence.backend].platform, evidence.arch) in archs
        assert evidence.call in CALLS
        assert evidence.commit != "unknown"
        assert len(evidence.date) == 10
    assert read_evidence()


def test_no_report_is_written_by_hand() -> None:
    """What a suite writes is formatted as it writes it, and names a file of the suite's."""
    root = Path(__file__).parents[3]
    for path in (root / "matrix").glob("report-*.json"):
        report = json.loads(path.read_text())
        assert path.read_text() == json.dumps(report, indent=1) + "\n"
        for row in report["rows"]:
            assert row["suite"] == "hal compile" or (root / row["suite"]).is_file()
