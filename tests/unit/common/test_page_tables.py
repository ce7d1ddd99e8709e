"""A request's pages in every pool: grown, shared, given back behind windows, and never lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hal
from hal.common.stepping.page_tables import RequestPages, stack_tables
from hal.common.stepping.pages import PagePool, make_pools

LAYERS = {
    "model_type": "made_up",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 10,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 6,
}
PAGE, LONGEST = 4, 40


def make_plan(**changes: Any) -> hal.Plan:
    return hal.plan(hal.read_shape(LAYERS | changes), "cpu", limits=hal.Limits(LONGEST, 4, 32, block_size=PAGE), dtype="float32")


def held(pages: RequestPages) -> list[list[int]]:
    return [row[row >= 0].tolist() for row in pages.tables]


class TestOnePool:
    def test_one_row_serves_all_groups_and_keeps_what_the_full_one_reads(self) -> None:
        plan, pools = make_plan(), make_pools((8, 8), is_single=True)
        pages = RequestPages(plan, pools)
        pages.grow(17)
        assert pages.release_behind_window(17) == 0
        assert held(pages) == [[0, 1, 2, 3, 4]]
        pages.free()
        assert pools[0].num_free == 8

    def test_where_every_group_has_a_window_the_widest_counts(self) -> None:
        plan = make_plan(layer_types=["sliding_attention"] * 2)
        pages = RequestPages(plan, make_pools((8,), is_single=True))
        pages.grow(17)
        assert pages.release_behind_window(17) == 3
        assert pages.tables[0, :6].tolist() == [-1, -1, -1, 3, 4, -1]


class TestPerGroup:
    @pytest.fixture
    def plan(self) -> hal.Plan:
        return make_plan()

    @pytest.fixture
    def pools(self) -> tuple[PagePool, ...]:
        return make_pools((10, 6), is_single=False)

    def test_a_window_group_gives_pages_back(self, plan: hal.Plan, pools: tuple[PagePool, ...]) -> None:
        pages = RequestPages(plan, pools)
        pages.grow(17)
        assert pages.release_behind_window(17) == 3
        assert held(pages) == [[0, 1, 2, 3, 4], [3, 4]]
        assert [pool.num_free for pool in pools] == [5, 4]
        assert pages.release_behind_window(17) == 0
        pages.grow(32)
        assert held(pages) == [list(range(8)), [3, 4, 0, 1, 2]]
        pages.free()
        assert [pool.num_free for pool in pools] == [10, 6]

    def test_where_one_pool_lacks_pages_none_is_taken(self, plan: hal.Plan, pools: tuple[PagePool, ...]) -> None:
        pages = RequestPages(plan, pools)
        pages.grow(8)
        before = pages.tables.copy()
        assert not pages.can_grow(28)
        with pytest.raises(hal.CapacityError, match="5 pages asked for, 4 of 6 are free"):
            pages.grow(28)
        assert [pool.num_free for pool in pools] == [8, 4]
        assert np.array_equal(pages.tables, before)
        assert pages.can_grow(24)
        pages.grow(24)

    @pytest.mark.parametrize("past", [1, 100])
    def test_no_request_is_longer_than_the_tables(self, plan: hal.Plan, pools: tuple[PagePool, ...], past: int) -> None:
        most = plan.block_table_width * PAGE
        length = most + past
        with pytest.raises(ValueError, match=f"of {length} tokens.*0 to {most}"):
            RequestPages(plan, pools).grow(length)

    @pytest.mark.parametrize("length", [-1, -8, 8.0, "8", None, True], ids=repr)
    @pytest.mark.parametrize("call", ["grow", "can_grow", "release_behind_window", "share_prefix"])
    def test_what_is_no_length_is_refused_and_takes_no_page(
        self, plan: hal.Plan, pools: tuple[PagePool, ...], call: str, length: Any
    ) -> None:
        other, pages = RequestPages(plan, pools), RequestPages(plan, pools)
        other.grow(plan.limits.max_model_len // 2)
        free, given = [pool.num_free for pool in pools], (other, length) if call == "share_prefix" else (length,)
        with pytest.raises(ValueError, match=f"a request of {length!r} tokens; expected a whole number"):
            getattr(pages, call)(*given)
        assert [pool.num_free for pool in pools] == free
        assert not (pages.tables >= 0).any()

    def test_full_pages_of_a_prefix_are_shared(self, plan: hal.Plan, pools: tuple[PagePool, ...]) -> None:
        first, second = RequestPages(plan, pools), RequestPages(plan, pools)
        first.grow(11)
        assert second.share_prefix(first, 11) == 8
        assert held(second) == [[0, 1], [0, 1]]
        assert [pool.num_shared for pool in pools] == [2, 2]
        second.grow(12)
        assert held(second) == [[0, 1, 3], [0, 1, 3]]
        first.free()
        assert [pool.num_shared for pool in pools] == [0, 0]
        second.free()
        assert [pool.num_free for pool in pools] == [10, 6]

    def test_what_a_window_has_left_behind_cannot_be_shared(self, plan: hal.Plan, pools: tuple[PagePool, ...]) -> None:
        """The token at 8 sees 3 and later, on column 0; the one at 16 sees 11, on column 2."""
        first, second = RequestPages(plan, pools), RequestPages(plan, pools)
        first.grow(18)
        first.release_behind_window(14)
        assert held(first) == [[0, 1, 2, 3, 4], [2, 3, 4]]
        assert second.share_prefix(first, 8) == 0
        assert held(second) == [[], []]
        assert second.share_prefix(first, 18) == 16
        assert held(second) == [[0, 1, 2, 3], [2, 3]]

    def test_nothing_is_shared_of_less_than_a_page(self, plan: hal.Plan, pools: tuple[PagePool, ...]) -> None:
        first, second = RequestPages(plan, pools), RequestPages(plan, pools)
        first.grow(8)
        assert second.share_prefix(first, 3) == 0
        second.grow(3)
        with pytest.raises(ValueError, match="holds 1 columns"):
            second.share_prefix(first, 8)

    def test_tables_of_several_requests_are_stacked_in_order(self, plan: hal.Plan, pools: tuple[PagePool, ...]) -> None:
        first, second = RequestPages(plan, pools), RequestPages(plan, pools)
        first.grow(11)
        second.grow(4)
        full, sliding = stack_tables([second, first])
        assert full.tolist() == sliding.tolist() == [[3, -1, -1], [0, 1, 2]]
        with pytest.raises(ValueError, match="at least one request"):
            stack_tables([])


class Histories(RuleBasedStateMachine):
    """Requests that grow, share, move their windows and leave; every batch of them is one that the builder takes."""

    @initialize(is_single=st.booleans(), full=st.integers(6, 24), sliding=st.integers(5, 12))
    def open(self, is_single: bool, full: int, sliding: int) -> None:
        plan = make_plan()
        self.attention = plan.open(full if is_single else (full, sliding))
        self.pools = self.attention.pools
        self.requests: list[tuple[RequestPages, int]] = []

    @precondition(lambda self: len(self.requests) < 4)
    @rule()
    def begin(self) -> None:
        self.requests.append((RequestPages(self.attention.plan, self.pools), 0))

    @precondition(lambda self: 0 < len(self.requests) < 4)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source, length = data.draw(st.sampled_from(self.requests))
        pages = RequestPages(self.attention.plan, self.pools)
        self.requests.append((pages, pages.share_prefix(source, data.draw(st.integers(0, length)))))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), new=st.integers(1, 12))
    def step(self, data: st.DataObject, new: int) -> None:
        index = data.draw(st.integers(0, len(self.requests) - 1))
        pages, length = self.requests[index]
        new = min(new, LONGEST - length)
        pages.release_behind_window(length)
        before, free = pages.tables.copy(), [pool.num_free for pool in self.pools]
        if not pages.can_grow(length + new):
            with pytest.raises(hal.CapacityError):
                pages.grow(length + new)
            assert np.array_equal(pages.tables, before)
            assert free == [pool.num_free for pool in self.pools]
            return
        pages.grow(length + new)
        self.requests[index] = (pages, length + new)
        self.attention.build(hal.Batch([new], [length + new], stack_tables([pages])))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        pages, _ = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        pages.free()

    @invariant()
    def every_page_is_held_as_often_as_it_is_named(self) -> None:
        for row, pool in enumerate(dict.fromkeys(self.pools) if hasattr(self, "pools") else ()):
            named = [page for pages, _ in self.requests for page in held(pages)[row]]
            assert [pool.holders(page) for page in range(pool.num_pages)] == [named.count(p) for p in range(pool.num_pages)]


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=25, deadline=None, derandomize=True)
