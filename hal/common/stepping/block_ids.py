"""Which ids a block table may hold: pages of its pool where a new token may read, anything else where none does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from hal.common.contract.errors import BatchError
from hal.common.contract.masking import Masking, masking_of

from .pages import PagePool

if TYPE_CHECKING:
    from hal.common.contract.cache_groups import CacheGroup
    from hal.common.contract.plan import Plan

Ints = npt.NDArray[Any]
Positions = TypeVar("Positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """What one block table's ids are: pages of a pool. reach: how the layers that read it see keys, () where one sees all.

    A request's live columns are those that any of its new tokens may see in any of these layers: from the first that the
    earliest of them reaches back to, to its last page; a request without a new token has none. Only there has every id to be
    a page of the pool.
    """

    pool: PagePool
    reach: tuple[Masking, ...] = ()

    @property
    def num_blocks(self) -> int:
        """Pages of the pool."""
        return self.pool.num_pages

    def first_column(self, position: Positions, tokens_per_page: int) -> Positions:
        """The first live column of requests whose first new tokens stand at some positions; ints, numpy and torch alike."""
        given: Any = position
        starts = [_first_key(given, rule) for rule in self.reach]
        first: Positions = reduce(_smaller, starts) // tokens_per_page if starts else given * 0
        return first

    def describe_reach(self) -> str:
        """What lies before a live column, in words."""
        words = [f"the window of {rule.window}" if rule.chunk is None else f"the chunk of {rule.chunk}" for rule in self.reach]
        return f"lie behind {' and '.join(words)}"


def _first_key(position: Any, rule: Masking) -> Any:
    """The first key that a query sees by a rule."""
    start = position * 0
    if rule.window is not None:
        start = _larger(start, position - (rule.window - 1))
    return start if rule.chunk is None else _larger(start, position // rule.chunk * rule.chunk)


def _smaller(left: Any, right: Any) -> Any:
    return left + (right - left) * (right < left)


def _larger(left: Any, right: Any) -> Any:
    return left + (right - left) * (right > left)


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
    reaches = [_find_reach(plan, group) for group in plan.groups] or [()]
    groups = tuple(TableRule(pool=pool, reach=reach) for pool, reach in zip(pools, reaches, strict=True))
    widest = () if () in reaches else _join(rule for reach in reaches for rule in reach)
    is_single = all(pool is pools[0] for pool in pools)
    return TableRules(
        groups=groups,
        shared=TableRule(pool=pools[0], reach=widest) if is_single else None,
        block_size=plan.block_size,
        tokens_per_page=plan.tokens_per_page,
    )


def _find_reach(plan: Plan, group: CacheGroup) -> tuple[Masking, ...]:
    """How the layers that read a cache group see its keys; () where one of them may see every key."""
    if group.window is not None:
        return (Masking(window=group.window),)
    if group.part != "kv":
        return ()
    readers = [layer for layer in plan.shape.layers if layer.kv_source in group.layer_ids]
    # An indexer may pick any key.
    if any(layer.indexer is not None or (layer.window is None and layer.chunk is None) for layer in readers):
        return ()
    return _join(masking_of(layer).sight for layer in readers)


def _join(rules: Iterable[Masking]) -> tuple[Masking, ...]:
    """The rules once each; of those that are windows alone the widest."""
    given = tuple(dict.fromkeys(rules))
    windows = [rule.window for rule in given if rule.window is not None and rule.chunk is None]
    chunks = tuple(rule for rule in given if rule.chunk is not None)
    return (Masking(window=max(windows)), *chunks) if windows else chunks


def live_stops(query_lens: Ints, seq_lens: Ints, tokens_per_page: int) -> Ints:
    """Where each request's live columns end."""
    stops: Ints = -(-seq_lens // tokens_per_page) * (query_lens > 0)
    return stops


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
