"""Which ids a block table may hold: pages of its pool where a token may read, anything behind every reader's window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hal.common.errors import BatchError
from hal.common.pages import PagePool

if TYPE_CHECKING:
    from hal.common.plan import Plan

Ints = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """What one block table's ids are: pages of a pool. window: the most keys that a token sees in it, None where all."""

    pool: PagePool
    window: int | None

    @property
    def num_blocks(self) -> int:
        """Pages of the pool."""
        return self.pool.num_pages


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of a step's tables: one for each cache group, and one for a table of all, None where page ids differ."""

    groups: tuple[TableRule, ...]
    shared: TableRule | None
    block_size: int
    tokens_per_page: int

    def for_tables(self, count: int) -> tuple[TableRule, ...]:
        """The rules of a batch with so many tables; BatchError where they do not fit the groups."""
        if count == 1 and self.shared is not None:
            return (self.shared,)
        if count == len(self.groups):
            return self.groups
        if self.shared is None:
            raise BatchError(
                f"{count} block tables for {len(self.groups)} cache groups, each with a pool of its own; give one table per group"
            )
        raise BatchError(f"{count} block tables; expected one, or one per cache group ({len(self.groups)})")


def make_rules(plan: Plan, pools: tuple[PagePool, ...]) -> TableRules:
    """The rules of a plan on these pools, one for each cache group."""
    windows = [group.window for group in plan.groups] or [None]
    groups = tuple(TableRule(pool=pool, window=window) for pool, window in zip(pools, windows, strict=True))
    widest = None if None in windows else max(window for window in windows if window is not None)
    is_single = all(pool is pools[0] for pool in pools)
    return TableRules(
        groups=groups,
        shared=TableRule(pool=pools[0], window=widest) if is_single else None,
        block_size=plan.block_size,
        tokens_per_page=plan.tokens_per_page,
    )


def first_columns(first_positions: Ints, window: int | None, tokens_per_page: int) -> Ints:
    """The first column that a request's tokens may read: its first new token, at this position, sees the furthest back."""
    if window is None:
        return np.zeros_like(first_positions)
    first: Ints = np.maximum(first_positions - (window - 1), 0) // tokens_per_page
    return first


def first_column(first_position: int, window: int | None, tokens_per_page: int) -> int:
    """The same for one request."""
    return 0 if window is None else max(0, first_position - (window - 1)) // tokens_per_page


def holds_strangers(table: Ints, columns: int, num_blocks: int) -> bool:
    """Whether any id in the first columns of a table int32 [requests, columns] is none of num_blocks pages: a quick look."""
    if columns <= 0 or not table.shape[0]:
        return False
    # Seen as unsigned, a negative id is larger than any page. The whole table lies end to end, which reads faster than a part.
    ids = table.view(np.uint32)
    if int(np.maximum.reduce(ids, axis=None)) < num_blocks:
        return False
    return int(np.maximum.reduce(ids[:, :columns], axis=None)) >= num_blocks


def find_wrong_block(table: Ints, first: Ints, stop: Ints, num_blocks: int) -> tuple[int, int] | None:
    """The first (request, column) with first <= column < stop whose id is none of num_blocks pages; None where all are.

    table: int32 [requests, columns], at least one of each.
    """
    ids = table.view(np.uint32)
    columns = table.shape[1]
    starts = np.arange(len(first)) * columns
    bounds = np.stack([starts + first, starts + stop], axis=1).ravel()
    if bounds[-1] == ids.size:
        bounds = np.minimum(bounds[:-1], ids.size - 1)
    largest = np.maximum.reduceat(ids.ravel(), bounds)[::2]
    wrong = np.flatnonzero((largest >= num_blocks) & (first < stop))
    if not wrong.size:
        return None
    request = int(wrong[0])
    live = ids[request, first[request] : stop[request]]
    return request, int(first[request]) + int(np.flatnonzero(live >= num_blocks)[0])


def forget_blocks(table: Ints, stop: int, num_blocks: int) -> None:
    """Turn every id in the first columns of a table that is none of num_blocks pages into -1, in place."""
    ids = table[:, :stop].view(np.uint32)
    # One more makes 0 of -1, which may stay.
    if ids.size and int((ids + np.uint32(1)).max()) > num_blocks:
        ids[ids >= num_blocks] = np.uint32(2**32 - 1)


def describe_shared_write(table: Ints, query_lens: Ints, seq_lens: Ints, pool: PagePool, tokens_per_page: int) -> str | None:
    """A sentence on the first new token that would be written to a page which several requests hold; None where none is.

    table: every id that a request reads is a page of the pool.
    """
    if not pool.num_shared:
        return None
    first = (seq_lens - query_lens) // tokens_per_page
    counts = np.where(query_lens > 0, (seq_lens - 1) // tokens_per_page - first + 1, 0)
    request = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(len(request)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    held = np.flatnonzero(pool.is_shared[table[request, column]])
    if not held.size:
        return None
    row, page_column = int(request[held[0]]), int(column[held[0]])
    page = int(table[row, page_column])
    position = max(int(seq_lens[row] - query_lens[row]), page_column * tokens_per_page)
    return (
        f"request {row} would write position {position} to page {page}, which is held {pool.holders(page)} times; a shared page "
        "is read-only: share full pages only, and let a request write to pages of its own"
    )
