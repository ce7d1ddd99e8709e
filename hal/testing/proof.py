"""A pytest plugin that writes down what a run proved, as the report files of hal.matrix are: never by hand.

pytest_plugins = ["hal.testing.proof"]; a test of a conformance case calls the fixture `prove` before the case is checked,
and `pytest --proof FILE` writes the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hal.common.backends.proof import STATES
from hal.common.backends.proof_report import name_processor, read_commit, write_report
from hal.config.sizes import INDEX_LAYOUTS, KIND_LAYOUTS

from .case import Case

LAYOUTS = frozenset({name for names in KIND_LAYOUTS.values() for name in names} | set(INDEX_LAYOUTS))
DTYPES = frozenset({"bfloat16", "float16", "float32", "float64"})
_PROPERTY = "hal_proof"

Prove = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """--proof FILE."""
    group = parser.getgroup("hal")
    group.addoption("--proof", metavar="FILE", type=Path, help="write what the conformance cases of this run prove")


def pytest_configure(config: pytest.Config) -> None:
    """Count only where a report is asked for."""
    path = config.getoption("--proof")
    if path is not None:
        config.pluginmanager.register(_Writer(path, config.rootpath), "hal-proof-writer")


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Prove:
    """prove(case, backend=name, arch=name, state="emulated", means="Triton's interpreter", device=""): what passing shows."""

    def note(case: Case, *, backend: str, arch: str, state: str, means: str, device: str = "") -> None:
        if state not in STATES:
            raise ValueError(f"a proof of state {state!r}; expected one of {', '.join(STATES)}")
        row = {"backend": backend, "arch": arch, "state": state, "means": means, "device": device or name_processor()}
        words = case.id.split("-")
        found = {"layouts": sorted(LAYOUTS.intersection(words)), "dtypes": sorted(DTYPES.intersection(words))}
        request.node.user_properties.append((_PROPERTY, {"row": row, "call": case.call, **found}))

    return note


class _Writer:
    """Adds up outcomes by suite, backend, arch and call, and writes them when the run ends."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._commit = path, read_commit(root)
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._deselected = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A case that fails in its set-up has proved nothing either way.
        if report.when != "call" or report.skipped:
            return
        for name, noted in report.user_properties:
            if name == _PROPERTY and isinstance(noted, dict):
                self._add(report.nodeid.partition("::")[0], noted, report.passed)

    def _add(self, suite: str, noted: dict[str, Any], passed: bool) -> None:
        row: dict[str, str] = noted["row"]
        known = self._rows.setdefault((suite, *row.values()), {"suite": suite, **row, "calls": {}})
        empty: dict[str, Any] = {"passed": 0, "failed": 0, "layouts": [], "dtypes": []}
        call = known["calls"].setdefault(noted["call"], empty)
        call["passed" if passed else "failed"] += 1
        for name in ("layouts", "dtypes") if passed else ():
            call[name] = sorted({*call[name], *noted[name]})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._deselected:
            raise pytest.UsageError(f"--proof counts whole suites; {self._deselected} tests were deselected")
        if not self._rows and exitstatus == pytest.ExitCode.TESTS_FAILED:
            return
        if not self._rows:
            raise pytest.UsageError("--proof was given and no conformance case ran")
        write_report(self._path, [self._rows[key] for key in sorted(self._rows)], self._commit)
