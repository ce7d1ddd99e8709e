"""Which tokens of a cache group have a row, and the arrays that groups with other rows than one per token need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hal.common.contract.cache_groups import CacheGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """Which tokens of a group have a row: the last of each tokens_per_row, or the last rows_kept of each page, None for all."""

    tokens_per_row: int = 1
    rows_kept: int | None = None


def row_rules(groups: Iterable[CacheGroup]) -> tuple[RowRule, ...]:
    """The rule of each cache group."""
    rules = []
    for group in groups:
        kept = group.last_rows if group.last_rows is not None and group.last_rows < group.block_size else None
        rules.append(RowRule(tokens_per_row=group.tokens_per_row, rows_kept=kept))
    return tuple(rules)


def row_regions(rules: Sequence[RowRule], max_requests: int, max_tokens: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """What groups in which tokens share rows need beside the arrays of every step: lengths and bounds, in execution order."""
    groups = len(rules)
    if all(rule.tokens_per_row == 1 for rule in rules):
        return {}
    return {"row_lens": ((groups, max_requests), "int32"), "row_bounds": ((groups, max_tokens), "int32")}
