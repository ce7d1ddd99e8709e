"""What adapters do to tensors, against plain loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.contract.layouts import attention_layout, latent_layout
from hal.common.vendor.tensors import pad_to, rows_to_csr, split_latent, split_pages, split_query, visible_lengths
from hal.testing.storage import ROOMY, build_cache, make_generator

torch.set_num_threads(1)
COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(counts=COUNTS, width=st.integers(5, 9))
@settings(max_examples=40, deadline=None)
def test_csr_holds_each_lists_valid_rows_in_order(counts: list[int], width: int) -> None:
    rows = torch.full((len(counts), width), -1, dtype=torch.int32)
    for token, count in enumerate(counts):
        rows[token, :count] = torch.arange(count, dtype=torch.int32) + 100 * token
    indptr, indices = rows_to_csr(rows, torch.tensor(counts, dtype=torch.int32))
    assert (indptr.dtype, indices.dtype) == (torch.int32, torch.int32)
    lists = [indices[start:stop].tolist() for start, stop in zip(indptr.tolist(), indptr.tolist()[1:], strict=False)]
    assert lists == [[100 * token + index for index in range(count)] for token, count in enumerate(counts)]
    assert not indices[int(indptr[-1]) :].any()


@given(
    requests=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=5),
    padding=st.integers(0, 3),
    causal=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_visible_lengths_are_those_counted_one_by_one(requests: list[tuple[int, int]], padding: int, causal: bool) -> None:
    expected = [
        max(0, seq_len - query_len + index + 1) if causal else seq_len
        for query_len, seq_len in requests
        for index in range(query_len)
    ]
    starts = torch.tensor([0, *(query_len for query_len, _ in requests)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lengths = torch.tensor([seq_len for _, seq_len in requests], dtype=torch.int32)
    found = visible_lengths(starts, lengths, len(expected) + padding, causal=causal)
    assert found.tolist() == expected + [0] * padding


def test_pages_are_split_without_a_copy() -> None:
    cache, _ = build_cache(attention_layout(2, 8, 4, "float16"), (9,), 4, make_generator("pages"), ROOMY)
    keys, values = split_pages(cache)
    assert keys.shape == (cache.num_pages, 4, 2, 8)
    assert values.shape == (cache.num_pages, 4, 2, 4)
    assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr() == cache.storage.untyped_storage().data_ptr()
    assert torch.equal(keys[1, 2].nan_to_num(), cache.storage[1, 2, :16].reshape(2, 8).nan_to_num())


def test_zeros_stand_in_for_a_rotary_part_that_is_not_there() -> None:
    cache, _ = build_cache(latent_layout(16, 0, "float16"), (3,), 4, make_generator("rope"))
    rope, latent = split_latent(cache, cache.rows, 8)
    assert (rope.shape[-1], latent.shape[-1]) == (8, 16)
    q_rope, q_latent = split_query(torch.ones(2, 3, 16), 16, 8)
    assert q_rope.shape == (2, 3, 8)
    assert not q_rope.any()
    assert q_latent.shape == (2, 3, 16)


def test_padding_leaves_what_is_wide_enough_alone() -> None:
    tensor = torch.ones(2, 3)
    assert pad_to(tensor, 1, 3) is tensor
    assert pad_to(tensor, 1, 5, value=-1).tolist() == [[1, 1, 1, -1, -1]] * 2
