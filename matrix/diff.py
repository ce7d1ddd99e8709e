"""Two support tables side by side: what got better, what worse, and what changed besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from hal.common.backends.proof import STATES

from .cells import Cell

Table = Mapping[tuple[str, ...], Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One cell that differs. what: a sentence with both values."""

    key: tuple[str, ...]
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """The changes by kind; a table that serves less, or is proved less, or takes more bytes for a token has regressed.

    gone: cells of the old table whose model, arch or variant the new one has not; new: the other way round.
    """

    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    other: tuple[Change, ...]
    gone: tuple[Change, ...]
    new: tuple[Change, ...]

    @property
    def has_regressed(self) -> bool:
        """Whether something that was there is gone or worse."""
        return bool(self.worse or self.gone)

    def sections(self) -> Iterator[tuple[str, tuple[Change, ...]]]:
        """Each kind that has changes, by name, the worst first."""
        for field in ("worse", "gone", "better", "new", "other"):
            found = getattr(self, field)
            if found:
                yield field, found


def compare_tables(old: Table, new: Table) -> TableDiff:
    """What the new table has against the old one, cell by cell in the old one's order."""
    found: dict[str, list[Change]] = {field.name: [] for field in fields(TableDiff)}
    for key, before in old.items():
        after = new.get(key)
        if after is None:
            found["gone"].append(Change(key=key, what=f"was {_say(before)}"))
            continue
        for kind, what in _compare(before, after):
            found[kind].append(Change(key=key, what=what))
    found["new"] = [Change(key=key, what=_say(cell)) for key, cell in new.items() if key not in old]
    return TableDiff(**{kind: tuple(changes) for kind, changes in found.items()})


def _compare(before: Cell, after: Cell) -> Iterator[tuple[str, str]]:
    if before.is_served != after.is_served or before.state != after.state:
        is_worse = STATES.index(after.state) > STATES.index(before.state)
        yield ("worse" if is_worse else "better"), f"{_say(before)} -> {_say(after)}"
    elif before.backends != after.backends:
        yield "other", f"backend {', '.join(before.backends)} -> {', '.join(after.backends)}"
    elif before.providers != after.providers:
        yield "other", f"providers {_say_providers(before)} -> {_say_providers(after)}"
    elif before.reasons != after.reasons:
        yield "other", f"reasons {'; '.join(before.reasons)} -> {'; '.join(after.reasons)}"
    if before.is_served and after.is_served and before.bytes_per_token != after.bytes_per_token:
        kind = "worse" if after.bytes_per_token > before.bytes_per_token else "better"
        yield kind, f"{before.bytes_per_token:,} -> {after.bytes_per_token:,} bytes per token"


def _say(cell: Cell) -> str:
    return f"{', '.join(cell.backends)} ({cell.state})" if cell.is_served else f"unsupported ({'; '.join(cell.reasons)})"


def _say_providers(cell: Cell) -> str:
    return "; ".join(f"{', '.join(calls)} by {provider}" for provider, calls in cell.providers.items())
