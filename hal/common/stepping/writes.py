"""Where new tokens may be written: to pages that nobody shares, each to a place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hal.common.contract.repeats import has_repeats

from .block_ids import live_stops

if TYPE_CHECKING:
    from .block_ids import TableRules
    from .host_step import HostStep
    from .pages import PagePool
    from .placement import Placement

Ints = npt.NDArray[Any]


def find_wrong_write(step: HostStep, placement: Placement, rules: TableRules) -> str | None:
    """A sentence on the first new token whose page several requests hold, or whose place another one takes; None without any.

    Every id that a request reads is a page of the pool.
    """
    if step.slots is not None:
        return _find_wrong_slot(step, rules)
    for pages, rule in zip(placement.pages, rules.for_tables(len(placement.pages)), strict=True):
        if rule.pool.num_shared:
            held = np.flatnonzero(rule.pool.is_shared[pages])
            if held.size:
                return _describe_shared_write(placement, pages, int(held[0]), rule.pool)
        if len(pages) > 1 and has_repeats(pages):
            mistake = _describe_double_write(placement, placement.spread(pages), rules.tokens_per_page)
            if mistake is not None:
                return mistake
    return None


def _describe_shared_write(placement: Placement, pages: Ints, run: int, pool: PagePool) -> str:
    page, token = int(pages[run]), run if placement.firsts is None else int(placement.firsts[run])
    return (
        f"request {placement.req_id[token]} would write position {placement.positions[token]} to page {page}, which is held "
        f"{pool.holders(page)} times; a shared page is read-only: share full pages only, and let a request write to pages of its "
        "own"
    )


def _describe_double_write(placement: Placement, pages: Ints, tokens_per_page: int) -> str | None:
    """A sentence on the first new token that would be written where an earlier one of the step is; pages alone may be shared."""
    request, position = placement.req_id, placement.positions
    pair = _find_repeat(pages.astype(np.int64) * tokens_per_page + position % tokens_per_page)
    if pair is None:
        return None
    first, again = pair
    return (
        f"request {request[again]} would write position {position[again]} to page {pages[again]}, row "
        f"{position[again] % tokens_per_page}, where position {position[first]} of request {request[first]} is written; give "
        "each a page of its own"
    )


def _find_wrong_slot(step: HostStep, rules: TableRules) -> str | None:
    given_slots = step.slots or ()
    for slots, rule in zip(given_slots, rules.for_tables(len(given_slots)), strict=True):
        given = slots[: step.num_tokens]
        if rule.pool.num_shared:
            held = np.flatnonzero((given >= 0) & rule.pool.is_shared[np.maximum(given, 0) // rules.block_size])
            if held.size:
                page = int(given[held[0]]) // rules.block_size
                return f"token {held[0]} has slot {given[held[0]]}, on page {page}, which is held {rule.pool.holders(page)} times"
        pair = _find_repeat(given) if has_repeats(given) else None
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


def _find_repeat(numbers: Ints) -> tuple[int, int] | None:
    """The places of the first number that is not negative and occurs twice, in the order of the second one."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0))
    if not again.size:
        return None
    place = int(again[np.argmin(order[again + 1])])
    return int(order[place]), int(order[place + 1])
