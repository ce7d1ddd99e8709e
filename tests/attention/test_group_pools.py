"""A pool and a block table for each cache group, and window groups that give pages back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers.engine import JUNK, snapshot, unchanged
from .helpers.shapes import gqa, model

LIMITS = hal.Limits(64, 4, 32, block_size=4)
WINDOW = 6
MIXED = model(gqa(0), gqa(1, window=WINDOW), gqa(2))
FULL, SLIDING = 0, 1


def make_plan(shape: Any = MIXED) -> hal.Plan:
    return hal.plan(shape, "cpu", limits=LIMITS, dtype="float32")


def table_of(rows: list[list[int]], width: int) -> np.ndarray:
    table = np.full((len(rows), width), JUNK, np.int32)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


class TestPools:
    @pytest.mark.parametrize("blocks", [(9, 5), {1: 5, 0: 9}], ids=["in_order", "by_group"])
    def test_every_group_has_as_many_pages_as_asked(self, blocks: Any) -> None:
        attention = make_plan().open(blocks)
        assert [pool.num_pages for pool in attention.pools] == [9, 5]
        assert {key: cache.num_pages for key, cache in attention.caches.items()} == {0: 9, 1: 5, 2: 9}
        assert not any(cache.storage.any() for cache in attention.caches.values())
        with pytest.raises(ValueError, match=r"9, 5 pages.*pools\[group\]"):
            _ = attention.pages

    def test_one_number_is_one_pool_for_all(self) -> None:
        attention = make_plan().open(7)
        assert all(pool is attention.pages for pool in attention.pools)
        assert len(attention.pools) == 2

    def test_equal_numbers_for_each_group_are_still_pools_of_their_own(self) -> None:
        attention = make_plan().open((7, 7))
        attention.pools[0].allocate(3)
        assert attention.pools[1].num_free == 7

    @pytest.mark.parametrize(
        ("blocks", "words"),
        [
            ((9,), "1 entries.*2 groups"),
            ((9, 5, 3), "3 entries.*2 groups"),
            ({0: 9}, r"\[0\].*\[0, 1\]"),
            ({0: 9, 2: 5}, r"\[0, 2\].*\[0, 1\]"),
            ((9, 0), "num_blocks is 0"),
            ((9, -5), "num_blocks is -5"),
            ((9, True), "num_blocks is True"),
        ],
    )
    def test_numbers_that_do_not_fit_the_groups_are_refused(self, blocks: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            make_plan().open(blocks)

    def test_pools_larger_than_the_device_are_refused_before_allocating(self) -> None:
        plan = hal.plan(MIXED, hal.detect()[-1], limits=LIMITS, dtype="float32")
        with pytest.raises(hal.CapacityError, match=f"{10**12}, 5 pages take"):
            plan.open((10**12, 5))


class TestBoundTensors:
    def bind(self, counts: dict[int, int]) -> hal.Attention:
        plan = make_plan()
        return plan.bind({spec.key: torch.zeros(spec.shape(counts[spec.key])) for spec in plan.cache_specs()})

    def test_page_counts_may_differ_between_groups(self) -> None:
        attention = self.bind({0: 9, 1: 5, 2: 9})
        assert [pool.num_pages for pool in attention.pools] == [9, 5]

    def test_the_layers_of_one_group_have_one_number_of_pages(self) -> None:
        with pytest.raises(hal.LayoutError, match=r"group 0 .*\{0: 9, 2: 8\}"):
            self.bind({0: 9, 1: 5, 2: 8})


def good() -> list[np.ndarray]:
    """Two requests of 9 and 5 tokens, a table for each group: the second has five pages."""
    return [table_of([[0, 8, 2], [3, 4]], 3), table_of([[0, 4, 2], [3, 1]], 3)]


class TestTables:
    @pytest.fixture
    def attention(self) -> hal.Attention:
        return make_plan().open((9, 5))

    def test_each_group_takes_slots_from_its_own_table(self, attention: hal.Attention) -> None:
        metadata = attention.build(hal.Batch([1, 1], [9, 5], good()))
        assert [group.slot_mapping.tolist() for group in metadata.groups] == [[8, 16], [8, 4]]

    def test_one_table_for_pools_with_ids_of_their_own_is_refused(self, attention: hal.Attention) -> None:
        with pytest.raises(hal.BatchError, match="1 block tables for 2 cache groups, each with a pool of its own"):
            attention.build(hal.Batch([1, 1], [9, 5], good()[0]))

    @pytest.mark.parametrize("group", [FULL, SLIDING])
    def test_ids_are_of_their_own_groups_pool(self, attention: hal.Attention, group: int) -> None:
        tables, blocks = good(), (9, 5)
        tables[group][1, 1] = blocks[group]
        before = snapshot(attention)
        with pytest.raises(
            hal.BatchError, match=f"request 1 has block {blocks[group]} in column 1; blocks are 0 to {blocks[group] - 1}"
        ):
            attention.build(hal.Batch([1, 1], [9, 5], tables))
        assert unchanged(attention, before)

    def test_device_tables_are_held_against_their_own_pools(self, attention: hal.Attention) -> None:
        tables = [torch.tensor([[8], [5]], dtype=torch.int32), torch.tensor([[4], [5]], dtype=torch.int32)]
        batch = hal.Batch.from_device(
            torch.tensor([0, 1, 2], dtype=torch.int32),
            torch.tensor([2, 3], dtype=torch.int32),
            tables,
            num_tokens=2,
            max_query_len=1,
            max_seq_len=3,
        )
        metadata = attention.build(batch)
        assert [group.slot_mapping.tolist() for group in metadata.groups] == [[33, 22], [17, -1]]

    def test_a_made_up_step_needs_no_pages(self, attention: hal.Attention) -> None:
        (page,) = attention.pools[0].allocate(1)
        attention.pools[0].share([page])
        metadata = attention.build_for_capture(3, 7)
        assert all(bool((group.slot_mapping == -1).all()) for group in metadata.groups)


class TestFreedPages:
    """A request of 15 tokens, two of them new: positions 13 and 14 see 8 and later, so columns 0 and 1 may be gone."""

    ROW = (0, 1, 2, 3)

    @pytest.fixture
    def attention(self) -> hal.Attention:
        return make_plan().open((9, 5))

    def build(self, attention: hal.Attention, *rows: list[int]) -> hal.StepMetadata:
        return attention.build(hal.Batch([2], [15], [table_of([row], 6) for row in rows]))

    @pytest.mark.parametrize("nothing", [-1, 5, -(2**31), 2**31 - 1])
    def test_a_table_may_name_no_page_behind_the_window(self, attention: hal.Attention, nothing: int) -> None:
        metadata = self.build(attention, list(self.ROW), [nothing, nothing, 2, 3])
        assert metadata.groups[SLIDING].batch.block_table[0, :4].tolist() == [-1, -1, 2, 3]
        assert metadata.groups[SLIDING].slot_mapping.tolist() == [13, 14]

    def test_a_page_inside_the_window_cannot_be_gone(self, attention: hal.Attention) -> None:
        with pytest.raises(hal.BatchError, match=r"request 0 has block -1 in column 2.*columns before 2 .*window of 6"):
            self.build(attention, list(self.ROW), [-1, -1, -1, 3])

    def test_a_page_of_a_group_without_a_window_cannot_be_gone(self, attention: hal.Attention) -> None:
        with pytest.raises(hal.BatchError, match=r"request 0 has block -1 in column 0; blocks are 0 to 8$"):
            self.build(attention, [-1, 1, 2, 3], list(self.ROW))

    def test_a_page_of_a_table_that_serves_both_groups_cannot_be_gone(self) -> None:
        attention = make_plan().open(9)
        with pytest.raises(hal.BatchError, match="block -1 in column 0"):
            attention.build(hal.Batch([2], [15], table_of([[-1, 1, 2, 3]], 4)))

    def test_the_widest_window_counts_in_a_table_of_window_groups(self) -> None:
        attention = make_plan(model(gqa(0, window=3), gqa(1, window=9))).open(9)
        attention.build(hal.Batch([2], [15], table_of([[-1, 1, 2, 3]], 4)))
        with pytest.raises(hal.BatchError, match=r"block -1 in column 1.*columns before 1 lie behind the window of 9"):
            attention.build(hal.Batch([2], [15], table_of([[-1, -1, 2, 3]], 4)))

    def test_every_new_token_counts(self, attention: hal.Attention) -> None:
        """With five new tokens the first sees position 5, on column 1."""
        with pytest.raises(hal.BatchError, match="block -1 in column 1"):
            attention.build(hal.Batch([5], [15], [table_of([row], 4) for row in (list(self.ROW), [-1, -1, 2, 3])]))

    def test_a_request_without_new_tokens_keeps_what_its_next_one_sees(self, attention: hal.Attention) -> None:
        attention.build(hal.Batch([0], [15], [table_of([row], 4) for row in (list(self.ROW), [-1, -1, 2, 3])]))

    def test_a_page_can_be_gone_from_the_length_at_which_the_window_has_left_it(self) -> None:
        """For every length: the last column that may be gone, and the first that may not."""
        attention = make_plan(model(gqa(0, window=WINDOW))).open(20)
        for length in range(1, 40):
            first = max(0, length - WINDOW) // 4
            row = np.arange(10, dtype=np.int32)[None, :].copy()
            row[0, :first] = -1
            attention.build(hal.Batch([1], [length], row))
            row[0, first] = -1
            with pytest.raises(hal.BatchError, match=f"block -1 in column {first}"):
                attention.build(hal.Batch([1], [length], row))


@pytest.mark.parametrize(
    "shape",
    [model(gqa(0, window=WINDOW), gqa(1, kv_source=0)), model(gqa(0, window=3), gqa(1, window=WINDOW, kv_source=0))],
    ids=["read_in_full", "read_further"],
)
def test_a_group_keeps_what_the_layer_that_reads_furthest_needs(shape: Any) -> None:
    (group,) = make_plan(shape).groups
    assert group.window == max((layer.window or 0 for layer in shape.layers if layer.layer_id), default=0) or group.window is None
    assert (group.window is None) == (shape.layers[1].window is None)


class TestReadOnly:
    @pytest.fixture
    def attention(self) -> hal.Attention:
        return make_plan().open(9)

    def share(self, attention: hal.Attention, count: int) -> list[int]:
        pages = attention.pages.allocate(count)
        attention.pages.share(pages)
        return pages

    def test_a_page_that_several_hold_is_read(self, attention: hal.Attention) -> None:
        pages = self.share(attention, 2) + attention.pages.allocate(1)
        assert attention.build(hal.Batch([1], [9], [pages])).slot_mapping.tolist() == [8]

    @pytest.mark.parametrize(("new", "position"), [(1, 8), (4, 5), (9, 0)])
    def test_a_page_that_two_requests_hold_is_never_written(self, attention: hal.Attention, new: int, position: int) -> None:
        pages = self.share(attention, 3)
        before = snapshot(attention)
        batch = hal.Batch([1, new], [1, 9], [[*attention.pages.allocate(1), 0, 0], pages])
        with pytest.raises(hal.BatchError, match=f"request 1 would write position {position} to page .* held 2 times"):
            attention.build(batch)
        assert unchanged(attention, before)

    def test_a_page_is_written_again_when_the_others_let_go(self, attention: hal.Attention) -> None:
        pages = self.share(attention, 1)
        attention.pages.free(pages)
        assert attention.build(hal.Batch([1], [3], [pages])).slot_mapping.tolist() == [2]

    def test_each_group_asks_its_own_pool_who_holds_a_page(self) -> None:
        attention = make_plan().open((9, 5))
        full, sliding = attention.pools[FULL].allocate(1), attention.pools[SLIDING].allocate(1)
        attention.pools[SLIDING].share(sliding)
        with pytest.raises(hal.BatchError, match="request 0 would write position 2"):
            attention.build(hal.Batch([1], [3], [np.array([full]), np.array([sliding])]))


class TestCapacity:
    def test_a_window_group_needs_its_windows_and_one_step(self) -> None:
        plan = make_plan()
        full, sliding = plan.blocks_per_group()
        assert full == plan.default_num_blocks() == 64
        positions = 4 * (WINDOW - 1) + 32
        assert sliding == (positions + 4 * 6) // 4

    def test_a_window_group_never_needs_more_than_one_without_a_window(self) -> None:
        assert make_plan().blocks_per_group(8) == (2, 2)

    def test_the_tokens_that_fit_some_memory_are_the_inverse_of_its_pages(self) -> None:
        plan = make_plan()
        for pages in (1, 5, 20, 64):
            blocks = plan.blocks_per_group(pages * 4)
            needed = plan.workspace_bytes + sum(n * group.page_bytes for n, group in zip(blocks, plan.groups, strict=True))
            assert plan.max_tokens_per_group(needed) == pages * 4
            assert plan.max_tokens_per_group(needed - 1) == (pages - 1) * 4
        assert plan.max_tokens_per_group(10**12) == 64 * 4
        assert plan.max_tokens_per_group(0) == 0

    def test_the_figure_suffices_for_any_step(self) -> None:
        """The worst case: every request in the middle of its pages, the new tokens spread over all."""
        random = np.random.default_rng(0)
        plan = make_plan(model(gqa(0, window=WINDOW)))
        (blocks,) = plan.blocks_per_group()
        worst = 0
        for _ in range(3000):
            shares = random.multinomial(32, random.dirichlet(np.ones(4)))
            needed = 0
            for new in shares:
                past = int(random.integers(0, 64 - new + 1))
                needed += -(-(past + new) // 4) - max(0, past - WINDOW + 1) // 4
            worst = max(worst, needed)
        assert blocks - 3 <= worst <= blocks
