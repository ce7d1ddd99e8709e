"""Which pages of the caches are in use, and by how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush

from .errors import CapacityError, InputError


class PagePool:
    """Page ids 0 to num_pages - 1, handed out once and counted; page i is page i of every layer's cache."""

    def __init__(self, num_pages: int) -> None:
        # A heap: the lowest pages go first, so that a request's pages tend to lie end to end, which some kernels need not copy.
        self._free = list(range(num_pages))
        self._holders = [0] * num_pages

    @property
    def num_pages(self) -> int:
        """Pages in the pool."""
        return len(self._holders)

    @property
    def num_free(self) -> int:
        """Pages that allocate() can still give."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` pages that nobody holds; CapacityError, with nothing taken, where there are fewer."""
        if count < 0:
            raise InputError(f"cannot allocate {count} pages; expected at least 0")
        if count > len(self._free):
            raise CapacityError(
                f"{count} pages asked for, {len(self._free)} of {self.num_pages} are free; free pages or open a larger pool"
            )
        pages = [heappop(self._free) for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> list[int]:
        """The same pages with one more holder each; ValueError, with nothing changed, for a page that nobody holds."""
        wanted = list(pages)
        self._check_held(set(wanted))
        for page in wanted:
            self._holders[page] += 1
        return wanted

    def free(self, pages: Iterable[int]) -> None:
        """One holder less for each page, and the page back where that was the last; ValueError as for share."""
        wanted = list(pages)
        self._check_held(wanted)
        for page in wanted:
            self._holders[page] -= 1
            if not self._holders[page]:
                heappush(self._free, page)

    def _check_held(self, pages: Iterable[int]) -> None:
        for page, count in Counter(pages).items():
            if not 0 <= page < self.num_pages:
                raise InputError(f"page {page} is not of this pool, which has pages 0 to {self.num_pages - 1}")
            if count > self._holders[page]:
                raise InputError(f"page {page} is held {self._holders[page]} times and named {count} times; freed twice?")
