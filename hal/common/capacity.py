"""How many pages a cache group needs where its pages are freed behind a window."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import CacheGroup, Plan


def count_blocks(plan: Plan, group: CacheGroup, num_pages: int) -> int:
    """Pages of a group's own pool that always suffice for num_pages pages of tokens, over all requests.

    A request with n new tokens reads window - 1 + n positions of a window group, which lie on at most one page more than
    they would fill; the n add up to no more than max_num_batched_tokens.
    """
    if group.window is None:
        return num_pages
    limits, size = plan.limits, plan.tokens_per_page
    positions = limits.max_num_seqs * (group.window - 1) + limits.max_num_batched_tokens
    # Each request's positions may begin and end inside a page.
    return min(num_pages, (positions + limits.max_num_seqs * 2 * (size - 1)) // size)


def count_tokens(plan: Plan, room_bytes: int) -> int:
    """The most tokens whose pages, group by group, fit in so many bytes: in whole pages, and no more than the limits allow."""

    def needed(num_pages: int) -> int:
        return sum(count_blocks(plan, group, num_pages) * group.page_bytes for group in plan.groups)

    pages = bisect_right(range(plan.default_num_blocks() + 1), max(0, room_bytes), key=needed) - 1
    return pages * plan.tokens_per_page
