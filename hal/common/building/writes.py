"""Where new tokens may be written: to pages that nobody shares, each to a place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .block_ids import live_stops

if TYPE_CHECKING:
    from hal.common.pages import PagePool

    from .block_ids import TableRules
    from .fill import HostStep

Ints = npt.NDArray[Any]

# Requests that write several pages each, up to which slicing them one by one is the quickest.
_MANY = 32


def describe_wrong_write(
    table: Ints, query_lens: Ints, seq_lens: Ints, pool: PagePool, tokens_per_page: int, is_single: bool
) -> str | None:
    """A sentence on the first new token whose page several requests hold, or whose place another one takes; None without any.

    table: every id that a request reads is a page of the pool. is_single: one new token for each request.
    """
    if pool.num_shared:
        request, column = _written_columns(query_lens, seq_lens, tokens_per_page)
        pages = table[request, column]
        held = np.flatnonzero(pool.is_shared[pages])
        if held.size:
            row, page_column, page = int(request[held[0]]), int(column[held[0]]), int(pages[held[0]])
            position = max(int(seq_lens[row] - query_lens[row]), page_column * tokens_per_page)
            return (
                f"request {row} would write position {position} to page {page}, which is held {pool.holders(page)} times; a "
                "shared page is read-only: share full pages only, and let a request write to pages of its own"
            )
    if is_single and len(seq_lens) < 2:
        return None
    if not _has_repeats(_written_pages(table, query_lens, seq_lens, tokens_per_page, is_single)):
        return None
    return _describe_double_write(table, query_lens, seq_lens, tokens_per_page)


def _written_pages(table: Ints, query_lens: Ints, seq_lens: Ints, tokens_per_page: int, is_single: bool) -> Ints:
    """The pages that new tokens are written to, one after the other, a page once for each request."""
    last = (seq_lens - 1) // tokens_per_page
    if is_single and table.flags.c_contiguous:
        # One index into a table that lies end to end takes a third of the time of two.
        pages: Ints = table.ravel().take(last + np.arange(0, table.size, table.shape[1]))
        return pages
    first = (seq_lens - query_lens) // tokens_per_page
    several = np.flatnonzero(last > first)
    if len(several) > _MANY:
        return table[_written_columns(query_lens, seq_lens, tokens_per_page)]
    runs = [table[row, first[row] : last[row] + 1] for row in several.tolist()]
    single = np.flatnonzero((last == first) & (query_lens > 0))
    return np.concatenate([table[single, last[single]], *runs])


def _written_columns(query_lens: Ints, seq_lens: Ints, tokens_per_page: int) -> tuple[Ints, Ints]:
    """The request and the column of each page that new tokens are written to."""
    first = (seq_lens - query_lens) // tokens_per_page
    counts = np.where(query_lens > 0, (seq_lens - 1) // tokens_per_page - first + 1, 0)
    request = np.repeat(np.arange(len(counts)), counts)
    return request, np.arange(len(request)) + np.repeat(first - (np.cumsum(counts) - counts), counts)


def _describe_double_write(table: Ints, query_lens: Ints, seq_lens: Ints, tokens_per_page: int) -> str | None:
    """A sentence on the first new token that would be written where an earlier one of the step is; pages alone may be shared."""
    request = np.repeat(np.arange(len(query_lens)), query_lens)
    ends = np.cumsum(query_lens)
    position = np.arange(len(request)) + np.repeat(seq_lens - ends, query_lens)
    page = table[request, position // tokens_per_page]
    pair = _find_repeat(page.astype(np.int64) * tokens_per_page + position % tokens_per_page)
    if pair is None:
        return None
    first, again = pair
    return (
        f"request {request[again]} would write position {position[again]} to page {page[again]}, row "
        f"{position[again] % tokens_per_page}, where position {position[first]} of request {request[first]} is written; give "
        "each a page of its own"
    )


def find_wrong_write(step: HostStep, rules: TableRules) -> str | None:
    """The same for a device batch as the host sees it, whose slots may be the engine's own."""
    if step.slots is None:
        for table, rule in zip(step.block_tables, rules.for_tables(len(step.block_tables)), strict=True):
            lens, size = (step.query_lens, step.seq_lens), rules.tokens_per_page
            mistake = describe_wrong_write(table, *lens, rule.pool, size, step.is_single)
            if mistake is not None:
                return mistake
        return None
    for slots, rule in zip(step.slots, rules.for_tables(len(step.slots)), strict=True):
        given = slots[: step.num_tokens]
        if rule.pool.num_shared:
            held = np.flatnonzero((given >= 0) & rule.pool.is_shared[np.maximum(given, 0) // rules.block_size])
            if held.size:
                page = int(given[held[0]]) // rules.block_size
                return f"token {held[0]} has slot {given[held[0]]}, on page {page}, which is held {rule.pool.holders(page)} times"
        pair = _find_repeat(given) if _has_repeats(given) else None
        if pair is not None:
            return f"tokens {pair[0]} and {pair[1]} both have slot {given[pair[0]]}; give each one of its own"
    return None


def find_repeated_pages(tables: Sequence[Ints], query_lens: Ints, seq_lens: Ints, rules: TableRules) -> str | None:
    """A sentence on the first request that has one page in two live columns; None where none has.

    It looks at every page of a step one request after the other: HAL_DEBUG=1 asks for it.
    """
    size = rules.tokens_per_page
    stops = live_stops(query_lens, seq_lens, size).tolist()
    for table, rule in zip(tables, rules.for_tables(len(tables)), strict=True):
        begins = rule.first_column(seq_lens - query_lens, size).tolist()
        for request, (begin, end) in enumerate(zip(begins, stops, strict=True)):
            pair = _find_repeat(table[request, begin:end])
            if pair is not None:
                first, again = begin + pair[0], begin + pair[1]
                return f"request {request} has page {table[request, first]} in columns {first} and {again}; each needs its own"
    return None


def _has_repeats(numbers: Ints) -> bool:
    """Whether any number that is not negative occurs twice."""
    ordered = np.sort(numbers)
    is_again = ordered[1:] == ordered[:-1]
    return bool(np.logical_or.reduce(is_again)) and bool((is_again & (ordered[1:] >= 0)).any())


def _find_repeat(numbers: Ints) -> tuple[int, int] | None:
    """The places of the first number that is not negative and occurs twice, in the order of the second one."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0))
    if not again.size:
        return None
    place = int(again[np.argmin(order[again + 1])])
    return int(order[place]), int(order[place + 1])
