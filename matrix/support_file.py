"""The support table as JSON and back: cells that differ in nothing but their arch are written once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import hal
from hal.common.backends.proof import STATES
from hal.common.contract.errors import InputError

from .cells import Cell

SCHEMA = 1
"""Goes up where a field changes its meaning or goes away."""

_EXPECTED = "expected what hal matrix --json prints"


def to_dict(cells: Iterable[Cell]) -> dict[str, Any]:
    """Schema number, hal's version, and the cells, each with every target that it is the same for.

    What cells have in common is listed once: a cell's providers are a place in the list of that name, its reasons several.
    """
    providers: dict[str, int] = {}
    reasons: dict[str, int] = {}
    folded: dict[str, dict[str, Any]] = {}
    for cell in cells:
        row = asdict(cell)
        target = row.pop("target")
        row["providers"] = providers.setdefault(json.dumps(row["providers"]), len(providers))
        row["reasons"] = [reasons.setdefault(sentence, len(reasons)) for sentence in cell.reasons]
        folded.setdefault(json.dumps(row), {**row, "targets": []})["targets"].append(target)
    return {
        "schema": SCHEMA,
        "hal": hal.__version__,
        "providers": [json.loads(text) for text in providers],
        "reasons": list(reasons),
        "cells": list(folded.values()),
    }


def to_text(cells: Iterable[Cell]) -> str:
    """The same as a file in which every entry is a line, so that a change reads as lines."""
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in to_dict(cells).items()]
    return "{" + ",\n".join(parts) + "}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in value) + "\n]"


def parse(name: str, text: str) -> dict[tuple[str, ...], Cell]:
    """The cells of a file by what they are about. InputError: it is no such file, or has one cell twice."""
    try:
        report = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name} is no JSON: {error}; {_EXPECTED}") from error
    schema = report.get("schema") if isinstance(report, Mapping) else None
    if schema != SCHEMA:
        raise InputError(f"{name} has schema {schema!r} where {SCHEMA} is read; {_EXPECTED}")
    cells: dict[tuple[str, ...], Cell] = {}
    try:
        for cell in (cell for row in report["cells"] for cell in _read_row(report, row)):
            if cell.key in cells:
                raise InputError(f"{name} has two cells of one name: {' '.join(filter(None, cell.key))}; {_EXPECTED}")
            cells[cell.key] = cell
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"{name} has a cell that cannot be read ({type(error).__name__}: {error}); {_EXPECTED}") from error
    return cells


def _read_row(report: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Cell]:
    if row["state"] not in STATES:
        raise InputError(f"a cell has state {row['state']!r}; expected one of {', '.join(STATES)}")
    providers = report["providers"][row["providers"]]
    for target in row["targets"]:
        yield Cell(
            **{name: str(row[name]) for name in ("model", "dtype", "kv_layout", "feature", "state")},
            target=str(target),
            backends=tuple(map(str, row["backends"])),
            providers={provider: tuple(calls) for provider, calls in providers.items()},
            bytes_per_token=int(row["bytes_per_token"]),
            reasons=tuple(report["reasons"][place] for place in row["reasons"]),
        )
