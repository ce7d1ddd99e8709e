"""Tables of token slots, as engines keep them that place every token by itself, are the block tables they stand for."""

from __future__ import annotations

import pytest
import torch

import hal
from hal.layouts import attention_layout
from hal.testing.cases import MIXED
from hal.testing.storage import build_cache, make_generator, paged_batch, random_tensor


def slots_of(table: torch.Tensor, block_size: int) -> torch.Tensor:
    """The slot of every token of some pages; none where there is no page."""
    slots = table[:, :, None] * block_size + torch.arange(block_size, dtype=torch.int32)
    return torch.where(table[:, :, None] < 0, -1, slots).flatten(1).int()


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_token_table_gives_what_its_block_table_gives(block_size: int) -> None:
    generator = make_generator(f"tokens{block_size}")
    cache, table = build_cache(attention_layout(2, 8, 6, "float32"), MIXED.seq_lens, block_size, generator)
    q = random_tensor(generator, MIXED.num_tokens, 4, 8, dtype="float32")
    batch = paged_batch(MIXED, table)
    sizes = {"block_size": block_size, "max_query_len": batch.max_query_len, "max_seq_len": batch.max_seq_len}
    tokens = slots_of(table, block_size)
    found = hal.PagedBatch.from_token_table(batch.query_start_loc, batch.seq_lens, tokens, **sizes)
    assert torch.equal(found.block_table, table)
    assert (found.block_table is tokens) == (block_size == 1)
    assert found.block_table.dtype is torch.int32
    outs = [hal.kernels("cpu").paged_attention(q, cache, each, softmax_scale=0.3)[0] for each in (batch, found)]
    assert torch.equal(*outs)


def test_tokens_without_a_slot_lie_on_no_page() -> None:
    tokens = torch.tensor([[-1, -1, 12, 13], [4, 5, -1, -1]], dtype=torch.int32)
    ints = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([4, 2], dtype=torch.int32)
    found = hal.PagedBatch.from_token_table(*ints, tokens, block_size=2, max_query_len=1, max_seq_len=4, num_decodes=2)
    assert found.block_table.tolist() == [[-1, 6], [2, -1]]
    assert found.num_decodes == 2


@pytest.mark.parametrize("block_size", [0, -2, 2.0, True])
def test_a_page_of_less_than_a_token_is_refused(block_size: object) -> None:
    with pytest.raises(hal.HalError, match=f"block_size is {block_size}"):
        make_batch(torch.zeros(1, 4, dtype=torch.int32), block_size)


@pytest.mark.parametrize("table", [torch.zeros(4).int(), torch.zeros(1, 4).long(), torch.zeros(1, 4), [[0]]], ids=repr)
def test_a_table_of_another_kind_is_refused(table: object) -> None:
    with pytest.raises(hal.BatchError, match=r"token_table is .*expected int32 \[n, n\]"):
        make_batch(table, 2)


def make_batch(table: object, block_size: object) -> hal.PagedBatch:
    ints = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([4], dtype=torch.int32)
    return hal.PagedBatch.from_token_table(*ints, table, block_size=block_size, max_query_len=1, max_seq_len=4)
