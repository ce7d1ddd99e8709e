"""A checkpoint plan grouped by layer pattern: names that differ in their numbers alone are one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .verdict import CheckpointPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Names of one pattern ("model.layers.*.mlp.up_proj.weight"), what they share, and the first of them as an example.

    numbers: for each star of the pattern the numbers that occur there ("0-31"). note: what is said of every one of them.
    """

    pattern: str
    count: int
    numbers: tuple[str, ...]
    note: str
    example: str


def group_names(notes: Mapping[str, str] | Iterable[str]) -> tuple[Row, ...]:
    """Rows of names in the order in which they first occur; names whose notes differ, numbers aside, lie in different rows."""
    pairs = notes.items() if isinstance(notes, Mapping) else ((name, "") for name in notes)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, note in pairs:
        groups.setdefault((star(name), star(note)), []).append(name)
    return tuple(_row(pattern, note, names) for (pattern, note), names in groups.items())


def _row(pattern: str, note: str, names: list[str]) -> Row:
    columns = zip(*(_numbers(name) for name in names), strict=True)
    return Row(pattern=pattern, count=len(names), numbers=tuple(map(say_numbers, columns)), note=note, example=names[0])


def star(text: str) -> str:
    """Names in the text with a star for each of their components that is a number."""
    return " ".join(".".join("*" if part.isdigit() else part for part in word.split(".")) for word in text.split(" "))


def _numbers(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split(".") if part.isdigit())


def say_numbers(numbers: Iterable[str]) -> str:
    """Numbers in runs: "0-2, 5"."""
    found = sorted({int(number) if len(number) < 19 else 10**18 for number in numbers})
    runs: list[list[int]] = []
    for number in found:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def describe_sources(plan: CheckpointPlan) -> dict[str, str]:
    """Parameter -> what it is made of: stored types, the tensors' names where they are others, and the conversion."""
    notes: dict[str, str] = {}
    for target, keys in plan.assigned.items():
        dtypes = "+".join(dict.fromkeys(plan.dtypes.get(key, "?") for key in keys))
        patterns = list(dict.fromkeys(star(key) for key in keys))
        is_same = patterns == [star(target)]
        count = f"{len(keys)}x " if len(keys) > 1 else ""
        origin = "" if is_same else f" from {count}{', '.join(patterns)}"
        conversion = plan.conversions.get(target)
        notes[target] = f"{dtypes}{origin}" + (f" by {conversion}" if conversion else "")
    return notes


def to_dict(plan: CheckpointPlan) -> dict[str, Any]:
    """Everything of a plan as JSON holds it."""
    return {
        "folder": str(plan.folder),
        "complete": plan.is_complete,
        "problems": list(plan.problems()),
        "warnings": list(plan.warnings),
        "stored_format": None if plan.stored_format is None else str(plan.stored_format),
        "bytes_per_rank": list(plan.bytes_per_rank),
        "assigned": {
            target: {
                "from": list(keys),
                "conversion": plan.conversions.get(target),
                "dtypes": sorted({plan.dtypes.get(key, "?") for key in keys}),
            }
            for target, keys in plan.assigned.items()
        },
        "groups": [
            {"pattern": row.pattern, "count": row.count, "numbers": list(row.numbers), "from": row.note}
            for row in group_names(describe_sources(plan))
        ],
        "skipped": dict(plan.skipped),
        "unused": dict(plan.unused),
        "unstored": dict(plan.unstored),
        "missing": {name: plan.nearest.get(name) for name in plan.missing},
        "unexpected": {name: plan.nearest.get(name) for name in plan.unexpected},
        "mismatched": dict(plan.mismatched),
        "collisions": {name: list(keys) for name, keys in plan.collisions.items()},
        "tied": {name: {"source": source, "because": plan.tied_because.get(name)} for name, source in plan.tied.items()},
        "index_only": {name: plan.elsewhere.get(name) for name in plan.index_only},
        "header_only": list(plan.header_only),
        "extra_files": list(plan.extra_files),
        "renamed": dict(plan.renamed),
        "dtypes": dict(plan.dtypes),
    }
