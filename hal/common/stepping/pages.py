"""Which pages of the caches are in use, and by how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from hal.common.contract.errors import CapacityError, InputError
from hal.common.contract.wording import say_count


class PagePool:
    """Page ids 0 to num_pages - 1, handed out once and counted; page i is page i of every cache that the pool serves.

    num_shared: pages with more than one holder. is_shared: bool [num_pages], True for those; nobody may write to them.
    version: grows whenever any of it changes.
    """

    def __init__(self, num_pages: int) -> None:
        # A heap: the lowest pages go first, so that a request's pages tend to lie end to end, which some kernels need not copy.
        self._free = list(range(num_pages))
        self._holders = [0] * num_pages
        self.num_shared = 0
        self.version = 0
        self.is_shared: npt.NDArray[np.bool_] = np.zeros(num_pages, np.bool_)

    @property
    def num_pages(self) -> int:
        """Pages in the pool."""
        return len(self._holders)

    @property
    def num_free(self) -> int:
        """Pages that allocate() can still give."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """How many hold a page; InputError for a page of another pool."""
        self._check_own(page)
        return self._holders[page]

    def allocate(self, count: int) -> list[int]:
        """`count` pages that nobody holds; CapacityError, with nothing taken, where there are fewer."""
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise InputError(f"cannot allocate {count!r} pages; expected a whole number of at least 0")
        if count > len(self._free):
            raise CapacityError(
                f"{say_count(count, 'page')} asked for, {len(self._free)} of {self.num_pages} are free; free pages or open a "
                "larger pool"
            )
        pages = [heappop(self._free) for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> list[int]:
        """The same pages with one more holder each; ValueError, with nothing changed, for a page that nobody holds."""
        wanted = self._as_own(pages)
        self._check_held(dict.fromkeys(wanted, 1))
        for page in wanted:
            self._holders[page] += 1
            if self._holders[page] == 2:
                self._mark_shared(page, True)
        return wanted

    def free(self, pages: Iterable[int]) -> None:
        """One holder less for each page, and the page back where that was the last; ValueError as for share."""
        wanted = self._as_own(pages)
        self._check_held(Counter(wanted))
        for page in wanted:
            self._holders[page] -= 1
            if not self._holders[page]:
                heappush(self._free, page)
            elif self._holders[page] == 1:
                self._mark_shared(page, False)

    def _as_own(self, pages: Iterable[int]) -> list[int]:
        try:
            wanted = list(pages)
        except TypeError as error:
            raise InputError(f"pages is {pages!r}; expected a list of page ids, as allocate() gives") from error
        for page in wanted:
            self._check_own(page)
        return wanted

    def _check_held(self, counts: Mapping[int, int]) -> None:
        for page, count in counts.items():
            if count > self._holders[page]:
                raise InputError(f"page {page} is held {self._holders[page]} times and named {count} times; freed twice?")

    def _check_own(self, page: int) -> None:
        if isinstance(page, bool) or not isinstance(page, (int, np.integer)) or not 0 <= page < self.num_pages:
            raise InputError(f"page {page!r} is not of this pool, which has pages 0 to {self.num_pages - 1}")

    def _mark_shared(self, page: int, is_shared: bool) -> None:
        self.is_shared[page] = is_shared
        self.num_shared += 1 if is_shared else -1
        self.version += 1


def make_pools(blocks: Sequence[int], *, is_single: bool) -> tuple[PagePool, ...]:
    """A pool for each cache group, by its number of pages; is_single: the same one for all, since page ids are the same."""
    if is_single:
        return (PagePool(blocks[0]),) * len(blocks)
    return tuple(PagePool(count) for count in blocks)
