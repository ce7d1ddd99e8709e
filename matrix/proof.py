"""What is proved of every backend's calls, read from the report files that suites wrote into this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from hal.common.backends.proof import SCHEMA, STATES, weakest
from hal.common.contract.device import Device
from hal.common.contract.selection import Selection

_PREFIX, _SUFFIX = "report-", ".json"
_HEAD = {"schema", "hal", "commit", "date", "rows"}
_ROW = {"suite", "backend", "arch", "state", "means", "device", "calls"}
_CALL = {"passed", "failed", "layouts", "dtypes"}
PROVED = frozenset({"verified", "executed", "emulated", "compiled"})
"""The states that a suite can give; the others come from declarations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One call of one backend on one arch in one report.

    passed: cases, or binaries where state is "compiled". layouts and dtypes: those of its cases, none where they name none.
    device: what the suite ran on. commit: of the checkout it ran in.
    """

    backend: str
    arch: str
    call: str
    state: str
    suite: str
    means: str
    device: str
    commit: str
    date: str
    passed: int
    layouts: frozenset[str]
    dtypes: frozenset[str]

    def covers(self, layouts: frozenset[str], dtype: str) -> bool:
        """Whether its cases have these layouts and the dtype, as far as they name any."""
        return (not self.layouts or layouts <= self.layouts) and (not self.dtypes or dtype in self.dtypes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How far a selection is proved: the weakest of its calls' states, and what that rests on.

    calls: the state of each. evidence: of the calls in the weakest state, one per report; none where that is "declared".
    """

    state: str
    calls: Mapping[str, str]
    evidence: tuple[Evidence, ...] = ()


@cache
def read_evidence() -> tuple[Evidence, ...]:
    """Every call that passed all its cases in some report of this folder; ValueError names a file that is no report."""
    found = sorted(item.name for item in files(__package__).iterdir() if item.name.startswith(_PREFIX))
    return tuple(
        evidence
        for name in found
        if name.endswith(_SUFFIX)
        for evidence in parse_report(name, files(__package__).joinpath(name).read_text(encoding="utf-8"))
    )


def parse_report(name: str, text: str) -> tuple[Evidence, ...]:
    """The evidence in a report file; a call with a failed case gives none. ValueError says what in it cannot be meant."""
    try:
        report = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {error}; let the suite write it anew") from error
    _check_keys(name, report, _HEAD)
    if report["schema"] != SCHEMA:
        raise ValueError(f"{name} has schema {report['schema']!r}; expected {SCHEMA}, let the suite write it anew")
    return tuple(evidence for row in report["rows"] for evidence in _read_row(name, report, row))


def _read_row(name: str, report: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Evidence]:
    _check_keys(f"a row of {name}", row, _ROW)
    if row["state"] not in PROVED:
        raise ValueError(f"a row of {name} has state {row['state']!r}; expected one of {', '.join(sorted(PROVED))}")
    for call, counts in row["calls"].items():
        _check_keys(f"{call} of {name}", counts, _CALL)
        if counts["failed"] or not counts["passed"]:
            continue
        yield Evidence(
            **{key: row[key] for key in ("backend", "arch", "state", "suite", "means", "device")},
            call=call,
            commit=report["commit"],
            date=report["date"],
            passed=counts["passed"],
            layouts=frozenset(counts["layouts"]),
            dtypes=frozenset(counts["dtypes"]),
        )


def _check_keys(what: str, found: object, expected: set[str]) -> None:
    keys = set(found) if isinstance(found, Mapping) else found
    if keys != expected:
        have = sorted(keys) if isinstance(keys, set) else repr(keys)
        raise ValueError(f"{what} has {have}; expected {sorted(expected)}, let the suite write it anew")


def judge(selection: Selection, device: Device, dtype: str) -> Proof:
    """How far it is proved that a selection's calls work on a device in a dtype."""
    known = _index(read_evidence())
    best: dict[str, Evidence | None] = {}
    for key, provider in selection.providers.items():
        call = key.partition(".")[0]
        layouts = _layouts_of(call, selection)
        held = (each for each in known.get((provider, device.arch, call), ()) if each.covers(layouts, dtype))
        best[key] = next(held, None)
    states = {key: each.state if each is not None else "declared" for key, each in best.items()}
    state = weakest(list(states.values()))
    found = [each for each in best.values() if each is not None and each.state == state]
    return Proof(state=state, calls=states, evidence=tuple(dict.fromkeys(found)))


@lru_cache(maxsize=8)
def _index(known: tuple[Evidence, ...]) -> Mapping[tuple[str, str, str], tuple[Evidence, ...]]:
    """The evidence by backend, arch and call, the strongest first."""
    found: dict[tuple[str, str, str], list[Evidence]] = {}
    for each in sorted(known, key=lambda one: STATES.index(one.state)):
        found.setdefault((each.backend, each.arch, each.call), []).append(each)
    return {key: tuple(listed) for key, listed in found.items()}


def _layouts_of(call: str, selection: Selection) -> frozenset[str]:
    """The cache layouts that a call meets."""
    kv, index = {selection.kv_layout}, {selection.index_layout} - {None}
    met = {"index_scores": index, "write_cache": kv | index, "gather_cache": kv | index}.get(call, kv)
    return frozenset(filter(None, met))
