"""One request's pages in every pool of an attention, and its rows of the block tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hal.common.contract.errors import InputError

from .block_ids import TableRule, make_rules

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan

    from .pages import PagePool


class RequestPages:
    """The pages that a request holds: one row of ids where all cache groups share a pool, else one for each group.

    pools: attention.pools, or an engine's own, one for each of the plan's groups. tables: int32 [rows, columns], -1 where no
    page is held. A request whose tokens will be computed anew is freed and grows again.
    """

    __slots__ = ("_begins", "_ends", "_page_tokens", "_rules", "tables")

    def __init__(self, plan: Plan, pools: Sequence[PagePool]) -> None:
        rules = make_rules(plan, tuple(pools))
        self._rules: tuple[TableRule, ...] = rules.groups if rules.shared is None else (rules.shared,)
        self._page_tokens = rules.tokens_per_page
        self.tables: npt.NDArray[np.int32] = np.full((len(self._rules), plan.block_table_width), -1, np.int32)
        self._begins = [0] * len(self._rules)
        self._ends = [0] * len(self._rules)

    @property
    def num_columns(self) -> int:
        """Columns of the longest row that hold a page, or have held one."""
        return max(self._ends)

    def can_grow(self, length: int) -> bool:
        """Whether grow(length) would find its pages."""
        return all(count <= rule.pool.num_free for count, rule in zip(self._missing(length), self._rules, strict=True))

    def grow(self, length: int) -> None:
        """Hold a page for every position before length; CapacityError, with no page taken from any pool, where one lacks.

        InputError for more than the plan's longest request.
        """
        missing = self._missing(length)
        # A pool that cannot give raises before any other has given.
        order = sorted(range(len(missing)), key=lambda row: missing[row] <= self._rules[row].pool.num_free)
        for row in order:
            begin, end = self._ends[row], self._ends[row] + missing[row]
            self.tables[row, begin:end] = self._rules[row].pool.allocate(missing[row])
            self._ends[row] = end

    def release_behind_window(self, length: int) -> int:
        """Free the pages that no new token at position length or later can see; how many there were.

        To be called before a step's tokens are placed, with the number of tokens that are computed.
        """
        _check_length(length)
        freed = 0
        for row, rule in enumerate(self._rules):
            begin, end = self._begins[row], min(self._first_seen(rule, length), self._ends[row])
            if begin < end:
                freed += end - begin
                rule.pool.free(self.tables[row, begin:end].tolist())
                self.tables[row, begin:end] = -1
                self._begins[row] = end
        return freed

    def share_prefix(self, other: RequestPages, length: int) -> int:
        """Hold the full pages of another request's first length tokens too; how many tokens those are, 0 where none can be.

        The tokens must be the same and computed. Where a window group has given back what a token after them would see,
        nothing is shared; what it still has behind their window is shared until release_behind_window(). Shared pages are
        read-only: new tokens go to pages of this request's own. InputError where this request holds pages already.
        """
        _check_length(length)
        if any(self._ends):
            raise InputError(f"a request that holds {self.num_columns} columns of pages cannot share a prefix; free it first")
        columns = min(length // self._page_tokens, *other._ends)
        tokens = columns * self._page_tokens
        needed = [self._first_seen(rule, tokens) for rule in self._rules]
        if not columns or any(kept > first for kept, first in zip(other._begins, needed, strict=True)):
            return 0
        for row, (rule, begin) in enumerate(zip(self._rules, other._begins, strict=True)):
            self.tables[row, begin:columns] = rule.pool.share(other.tables[row, begin:columns].tolist())
            self._begins[row], self._ends[row] = begin, columns
        return tokens

    def free(self) -> None:
        """Hold nothing any more."""
        for row, rule in enumerate(self._rules):
            begin, end = self._begins[row], self._ends[row]
            rule.pool.free(self.tables[row, begin:end].tolist())
            self.tables[row, :end] = -1
            self._begins[row] = self._ends[row] = 0

    def _missing(self, length: int) -> list[int]:
        _check_length(length)
        columns = -(-length // self._page_tokens)
        if columns > self.tables.shape[1]:
            most = self.tables.shape[1] * self._page_tokens
            raise InputError(f"a request of {length} tokens; the plan's block tables hold 0 to {most}")
        return [max(0, columns - end) for end in self._ends]

    def _first_seen(self, rule: TableRule, length: int) -> int:
        return rule.first_column(length, self._page_tokens)


def _check_length(length: object) -> None:
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 0:
        raise InputError(f"a request of {length!r} tokens; expected a whole number of at least 0")


def stack_tables(requests: Sequence[RequestPages]) -> tuple[npt.NDArray[Any], ...]:
    """The block tables of a step, int32 [requests, columns]: one, or one for each cache group, as Batch takes them."""
    if not requests:
        raise InputError("a step's block tables need at least one request")
    columns = max(1, *(request.num_columns for request in requests))
    return tuple(np.stack([request.tables[:, :columns] for request in requests], axis=1))
