"""A checkpoint plan on the screen, one row for all layers that are alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hal.common.contract.plan_text import format_bytes

if TYPE_CHECKING:
    from hal.models import CheckpointPlan

BAD, QUIET = "bold yellow", "dim"
NAME_WIDTH = 56
MOST_ROWS = 200
"""A section longer than this is cut; the JSON holds it all."""


def show_plan(plan: CheckpointPlan, console: Console) -> None:
    """Prints the verdict, then every kind of tensor with what becomes of it; sections that are empty are left out."""
    from hal.models.summary import describe_sources

    _say_verdict(plan, console)
    _section("assigned", describe_sources(plan), console)
    _section("tied", {name: f"to {source}: {plan.tied_because.get(name, '')}" for name, source in plan.tied.items()}, console)
    _section("skipped", plan.skipped, console)
    _section("not built", plan.unused, console)
    _section("computed, not stored", plan.unstored, console)
    _section("missing", _with_nearest(plan, plan.missing), console, BAD)
    _section("unexpected", _with_nearest(plan, plan.unexpected), console, BAD)
    _section("of another shape or type", plan.mismatched, console, BAD)
    _section("filled twice", {name: f"by {' and '.join(keys)}" for name, keys in plan.collisions.items()}, console, BAD)
    _section("only in the index", {name: _say_place(plan.elsewhere.get(name)) for name in plan.index_only}, console, BAD)
    _section("only in a header", dict.fromkeys(plan.header_only, "not in the index, not read"), console)
    _section("files that are not read", dict.fromkeys(plan.extra_files, ""), console)


def _say_verdict(plan: CheckpointPlan, console: Console) -> None:
    verdict = "loads as it is" if plan.is_complete else "does not load as it is"
    console.print(Text(f"{plan.folder}: {verdict}", style="bold" if plan.is_complete else BAD))
    read = plan.bytes_per_rank
    ranks = format_bytes(read[0]) if len(set(read)) == 1 else ", ".join(map(format_bytes, read))
    each = f" on each of {len(read)} ranks" if len(read) > 1 and len(set(read)) == 1 else " by rank" if len(read) > 1 else ""
    console.print(
        Padding(f"{len(plan.assigned):,} parameters from {len(plan.dtypes):,} tensors, {ranks} to read{each}", (0, 0, 0, 2))
    )
    if plan.stored_format is not None:
        console.print(Padding(Text(f"stored as {plan.stored_format}", style=BAD), (0, 0, 0, 2)))
    for warning in plan.warnings:
        console.print(Padding(Text(f"warning: {warning}", style=BAD), (0, 0, 0, 2)))


def _section(title: str, notes: Mapping[str, str], console: Console, style: str = "") -> None:
    from hal.models.summary import group_names

    if not notes:
        return
    rows = group_names(notes)
    console.print(Text(f"{title}: {len(notes):,}", style=style or "bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    longest = max(len(row.pattern) for row in rows[:MOST_ROWS])
    table.add_column(overflow="fold", min_width=min(longest, NAME_WIDTH))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", style=QUIET)
    for row in rows[:MOST_ROWS]:
        numbers = f"{row.count:,} x {' / '.join(row.numbers)}" if row.count > 1 else " / ".join(row.numbers)
        table.add_row(Text(_safe(row.pattern)), Text(_short(numbers)), Text(_safe(row.note)))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if len(rows) > MOST_ROWS:
        console.print(Padding(f"and {len(rows) - MOST_ROWS:,} more kinds, see --json", (0, 0, 0, 2)))


def _with_nearest(plan: CheckpointPlan, names: Iterable[str]) -> dict[str, str]:
    return {name: f"near {plan.nearest[name]}" if name in plan.nearest else "" for name in names}


def _say_place(file: str | None) -> str:
    return "in no file" if file is None else f"it lies in {file}"


def _short(numbers: str) -> str:
    return numbers if len(numbers) <= 24 else numbers[:21] + "..."


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
