"""How many pages a cache group needs where its pages are freed behind a window."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .cache_groups import CacheGroup
from .limits import Limits


def count_blocks(group: CacheGroup, limits: Limits, tokens_per_page: int, num_pages: int) -> int:
    """Pages of a group's own pool that always suffice for num_pages pages of tokens, over all requests.

    A request with n new tokens reads window - 1 + n positions of a window group, which lie on at most one page more than
    they would fill; the n add up to no more than max_num_batched_tokens.
    """
    if group.window is None:
        return num_pages
    positions = limits.max_num_seqs * (group.window - 1) + limits.max_num_batched_tokens
    # Each request's positions may begin and end inside a page.
    return min(num_pages, (positions + limits.max_num_seqs * 2 * (tokens_per_page - 1)) // tokens_per_page)


def count_tokens(groups: Sequence[CacheGroup], limits: Limits, tokens_per_page: int, room_bytes: int, max_pages: int) -> int:
    """The most tokens whose pages, group by group, fit in so many bytes: whole pages, and max_pages of them at most."""

    def needed(num_pages: int) -> int:
        return sum(count_blocks(group, limits, tokens_per_page, num_pages) * group.page_bytes for group in groups)

    pages = bisect_right(range(max_pages + 1), max(0, room_bytes), key=needed) - 1
    return pages * tokens_per_page
