"""The page pool: pages are counted, and a mistake changes nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import hal
from hal.common.stepping.pages import PagePool


@pytest.fixture
def pool() -> PagePool:
    return PagePool(8)


def test_pages_are_handed_out_once(pool: PagePool) -> None:
    taken = [*pool.allocate(3), *pool.allocate(0), *pool.allocate(5)]
    assert sorted(taken) == list(range(8))
    assert pool.num_free == 0


def test_an_exhausted_pool_says_what_there_is_and_gives_nothing(pool: PagePool) -> None:
    pool.allocate(6)
    with pytest.raises(hal.CapacityError, match=r"3 pages.*2 of 8"):
        pool.allocate(3)
    assert pool.num_free == 2
    assert len(pool.allocate(2)) == 2


def test_freed_pages_come_back(pool: PagePool) -> None:
    pages = pool.allocate(8)
    pool.free(pages[2:5])
    assert sorted(pool.allocate(3)) == sorted(pages[2:5])


def test_a_shared_page_is_kept_until_its_last_holder_frees_it(pool: PagePool) -> None:
    pages = pool.allocate(2)
    assert pool.share(pages) == pages
    pool.free(pages)
    assert pool.num_free == 6
    pool.free(pages)
    assert pool.num_free == 8


@pytest.mark.parametrize("call", ["free", "share"])
class TestMistakes:
    def test_a_page_that_nobody_holds_is_refused(self, call: str, pool: PagePool) -> None:
        page, other = pool.allocate(2)
        pool.free([page])
        with pytest.raises(ValueError, match=f"page {page} "):
            getattr(pool, call)([other, page])
        assert pool.num_free == 7
        pool.free([other])

    @pytest.mark.parametrize("page", [-1, 8, 10**9, True, 1.0, "1", None, [0], {0}])
    def test_a_page_of_another_pool_is_refused(self, call: str, page: Any, pool: PagePool) -> None:
        (own,) = pool.allocate(1)
        with pytest.raises(ValueError, match=f"page {re.escape(repr(page))} .*0 to 7"):
            getattr(pool, call)([own, page])
        assert pool.num_free == 7

    @pytest.mark.parametrize("pages", [3, None, 1.5])
    def test_what_is_no_list_of_pages(self, call: str, pages: Any, pool: PagePool) -> None:
        with pytest.raises(ValueError, match=f"pages is {pages!r}; expected a list"):
            getattr(pool, call)(pages)


def test_a_page_named_twice_in_one_call_is_a_double_free(pool: PagePool) -> None:
    (page,) = pool.allocate(1)
    with pytest.raises(ValueError, match="twice"):
        pool.free([page, page])
    assert pool.num_free == 7


def test_a_page_can_gain_two_holders_in_one_call(pool: PagePool) -> None:
    (page,) = pool.allocate(1)
    pool.share([page, page])
    pool.free([page, page, page])
    assert pool.num_free == 8


@pytest.mark.parametrize("count", [-1, -8, True, 1.5, "1", None])
def test_a_count_that_is_none_is_refused(count: Any, pool: PagePool) -> None:
    with pytest.raises(ValueError, match=f"{count!r} pages"):
        pool.allocate(count)


class Histories(RuleBasedStateMachine):
    """Any sequence of allocations, shares and frees, against a count kept beside it."""

    SIZE = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.SIZE)
        self.holders: dict[int, int] = {}

    @rule(count=st.integers(0, 7))
    def allocate(self, count: int) -> None:
        free = self.SIZE - len(self.holders)
        if count > free:
            with pytest.raises(hal.CapacityError):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count
        assert not set(pages) & set(self.holders)
        self.holders |= dict.fromkeys(pages, 1)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.share([page])
        self.holders[page] += 1

    @rule(page=st.integers(-1, 6))
    def free(self, page: int) -> None:
        if page not in self.holders:
            with pytest.raises(ValueError, match=f"page {page} "):
                self.pool.free([page])
            return
        self.pool.free([page])
        self.holders[page] -= 1
        if not self.holders[page]:
            del self.holders[page]

    @invariant()
    def the_count_is_right(self) -> None:
        assert self.pool.num_pages == self.SIZE
        assert self.pool.num_free == self.SIZE - len(self.holders)
        assert [self.pool.holders(page) for page in range(self.SIZE)] == [self.holders.get(page, 0) for page in range(self.SIZE)]
        shared = {page for page, count in self.holders.items() if count > 1}
        assert set(self.pool.is_shared.nonzero()[0].tolist()) == shared
        assert self.pool.num_shared == len(shared)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True)
