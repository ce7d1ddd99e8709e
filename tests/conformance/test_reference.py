"""The reference itself, against torch's own attention and against results worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hal.common.contract.call_values import IndexerChunk, Segment, VarlenBatch
from hal.common.contract.errors import BatchError
from hal.common.contract.layouts import attention_layout, index_layout, latent_layout
from hal.common.contract.masking import Masking
from hal.common.contract.parallel import Parallel
from hal.testing import reference
from hal.testing.cases import BATCHES, MIXED, start_loc
from hal.testing.storage import STRIDED, build_cache, make_generator, paged_batch, poisoned_cache, random_tensor

INT = torch.int32

EVERYTHING = Masking(causal=False)


def ints(*values):
    return torch.tensor(values, dtype=INT)


def lists_of(queries, keys, **limits):
    """Requests that begin and end at some queries and keys."""
    return VarlenBatch(q_start_loc=queries, k_start_loc=keys, max_query_len=int(queries[-1]), max_seq_len=int(keys[-1]), **limits)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_varlen_attention_is_torch_attention(causal, kv_heads):
    generator = make_generator("varlen")
    q = random_tensor(generator, 5, 4, 8, dtype="float64")
    k, v = (random_tensor(generator, 5, kv_heads, width, dtype="float64") for width in (8, 6))
    out, _ = reference.varlen_attention(
        q, k, v, lists_of(ints(0, 5), ints(0, 5)), softmax_scale=0.7, masking=Masking(causal=causal)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(0, 1) for tensor in (q, k, v)), is_causal=causal, scale=0.7, enable_gqa=True
    )
    torch.testing.assert_close(out, expected.transpose(0, 1))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.id)
def test_the_reference_gives_the_same_over_pages_as_without_them(batch):
    generator = make_generator(batch.id)
    cache, table = build_cache(attention_layout(2, 8, 6, "float64"), batch.seq_lens, 4, generator, STRIDED)
    q = random_tensor(generator, batch.num_tokens, 4, 8, dtype="float64")
    paged = reference.paged_attention(q, cache, paged_batch(batch, table), softmax_scale=0.5, masking=Masking(window=7))
    rows = [
        int(table[request, position // 4]) * cache.page_stride + position % 4
        for request, seq_len in enumerate(batch.seq_lens)
        for position in range(seq_len)
    ]
    k, v = reference.gather_rows(cache, torch.tensor(rows, dtype=INT))
    lists = lists_of(batch.query_start_loc, start_loc(batch.seq_lens))
    flat = reference.varlen_attention(q, k, v, lists, softmax_scale=0.5, masking=Masking(window=7))
    torch.testing.assert_close(paged, flat)


@pytest.mark.parametrize(
    ("limits", "seen"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"causal": False}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"window": 1}, [5]),
        ({"window": 3}, [3, 4, 5]),
        ({"chunk": 4}, [4, 5]),
        ({"chunk": 4, "window": 1}, [5]),
        ({"chunk": 100, "window": 100}, [0, 1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_what_position_5_of_8_sees(limits, seen):
    from hal.testing.reference.softmax import visible_keys

    assert visible_keys(5, 8, Masking(**limits)) == seen


def test_softcap_and_lse_of_one_key():
    q = k = v = torch.full((1, 1, 1), 2.0).double()
    out, lse = reference.varlen_attention(
        q, k, v, lists_of(ints(0, 1), ints(0, 1)), softmax_scale=0.5, masking=Masking(softcap=1.5)
    )
    assert out.item() == pytest.approx(2.0)
    assert lse.item() == pytest.approx(1.5 * math.tanh(2.0 / 1.5))


def test_selected_keys_have_ids_that_start_at_the_first_key():
    generator = make_generator("selected")
    q, k, v = (random_tensor(generator, 3, 1, 4, dtype="float64") for _ in range(3))
    ends = (ints(0, 3), ints(0, 3))
    chosen = ints(10, -1), ints(11, 10), ints(9, 13)
    out, lse = reference.varlen_attention(
        q, k, v, lists_of(*ends, selected=torch.stack(chosen), first_key=ints(10)), softmax_scale=1.0
    )
    plain, _ = reference.varlen_attention(q, k, v, lists_of(*ends), softmax_scale=1.0)
    torch.testing.assert_close(out[0], v[0])
    torch.testing.assert_close(out[1], plain[1])
    assert out[2].abs().max() == 0
    assert lse[2].item() == -math.inf


def test_sparse_attention_to_every_key_is_dense():
    generator = make_generator("sparse")
    cache, table = build_cache(latent_layout(8, 4, "float64"), MIXED.seq_lens, 4, generator, STRIDED)
    q = random_tensor(generator, MIXED.num_tokens, 2, 12, dtype="float64")
    ids = [request for request, _ in MIXED.positions]
    topk = torch.full((MIXED.num_tokens, 40), -1, dtype=INT)
    for token, (_, position) in enumerate(MIXED.positions):
        topk[token, : position + 1] = torch.arange(position + 1)
    batch = paged_batch(MIXED, table)
    rows, valid = reference.rows_from_topk(
        topk, ints(*ids), table, batch.seq_lens, block_size=4, rows_per_page=cache.page_stride, parallel=Parallel()
    )
    halves = [Segment(cache, rows[:, :3], valid.clamp(max=3)), Segment(cache, rows[:, 3:], (valid - 3).clamp(min=0))]
    sparse = reference.sparse_mla(q, halves, kv_lora_rank=8, softmax_scale=0.4)
    torch.testing.assert_close(sparse, reference.paged_attention(q, cache, batch, softmax_scale=0.4))


def test_scores_of_a_chunk_are_rows_of_the_whole():
    generator = make_generator("scores")
    cache, table = build_cache(index_layout(8, "float64"), MIXED.seq_lens, 4, generator)
    iq = random_tensor(generator, MIXED.num_tokens, 3, 8, dtype="float64")
    weights = random_tensor(generator, MIXED.num_tokens, 3, dtype="float32")
    whole = reference.index_scores(iq, weights, cache, paged_batch(MIXED, table))
    chunk = IndexerChunk(token_start=3, token_stop=8, request_start=0, request_stop=3, max_seq_len=20)
    part = reference.index_scores(iq, weights, cache, paged_batch(MIXED, table), chunk)
    torch.testing.assert_close(part, whole[3:8, :20])
    assert whole[4].isfinite().sum() == 20


def test_scores_of_the_reference_are_those_worked_out_by_hand():
    cache = poisoned_cache(index_layout(2, "float32"), 1, 2)
    reference.write_rows(cache, torch.tensor([0, 1]), [torch.tensor([[1.0, 0.0], [-1.0, 2.0]])])
    iq = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    batch = MIXED.__class__(id="one", query_lens=(1,), seq_lens=(2,))
    scores = reference.index_scores(iq, torch.tensor([[3.0, -1.0]]), cache, paged_batch(batch, ints(0)[None]))
    assert scores.tolist() == [[6.0, -2.0]]


def test_choices_of_the_reference_are_those_worked_out_by_hand():
    scores = torch.tensor([[1.0, math.nan, 3.0, 3.0, -0.0, 0.0]]).repeat(5, 1)
    topk = reference.select_topk(scores, ints(6, 3, 0, -1, 6), 3, 4)
    assert topk.tolist() == [[2, 3, 0, -1], [2, 0, 1, -1], [-1] * 4, [-1] * 4, [2, 3, 0, -1]]
    with pytest.raises(BatchError, match="k is 5; a row of width 4"):
        reference.select_topk(scores, ints(6, 3, 0, -1, 6), 5, 4)


def test_pools_of_the_reference_are_those_worked_out_by_hand():
    topk, lengths = torch.stack([ints(1, 0), ints(1, 2), ints(0, -1), ints(-1, -1)]), ints(11, 11, 3, 0)
    tokens = reference.expand_pools(topk, lengths, 4, 12).tolist()
    assert [[token for token in row if token >= 0] for row in tokens] == [
        [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10],
        [4, 5, 6, 7, 8, 9, 10],
        [0, 1, 2],
        [],
    ]


def test_an_id_past_its_own_request_is_no_row_of_the_next():
    rows, valid = reference.rows_from_topk(
        ints(5, 1)[None], ints(0), torch.stack([ints(0), ints(1)]), ints(4, 4), block_size=4, parallel=Parallel()
    )
    assert (rows.tolist(), valid.tolist()) == ([[1, -1]], [1])


def test_rows_of_a_rank_by_hand():
    parallel = Parallel(dcp=2, dcp_rank=1, interleave=2)
    rows, valid = reference.rows_from_topk(
        ints(0, 2, 3, 6, 7, 10, 11)[None],
        ints(0),
        ints(7, -1, 2)[None],
        ints(12),
        block_size=2,
        rows_per_page=5,
        parallel=parallel,
    )
    assert (rows.tolist(), valid.tolist()) == ([[35, 36, 10, 11, -1, -1, -1]], [4])


def test_merging_two_halves_is_the_whole():
    generator = make_generator("merge")
    q = random_tensor(generator, 3, 2, 4, dtype="float64")
    k, v = (random_tensor(generator, 8, 2, 4, dtype="float64") for _ in range(2))
    starts = ints(0, 3)
    parts = [
        reference.varlen_attention(q, k[keys], v[keys], lists_of(starts, ints(0, 4)), softmax_scale=1.0, masking=EVERYTHING)
        for keys in (slice(0, 4), slice(4, 8))
    ]
    whole = reference.varlen_attention(q, k, v, lists_of(starts, ints(0, 8)), softmax_scale=1.0, masking=EVERYTHING)
    torch.testing.assert_close(reference.merge_states(*parts[0], *parts[1]), whole)


def test_a_sink_is_a_key_without_a_value():
    q, k = torch.zeros(1, 1, 2).double(), torch.zeros(3, 1, 2).double()
    v = torch.ones(3, 1, 2).double()
    out, lse = reference.varlen_attention(q, k, v, lists_of(ints(0, 1), ints(0, 3)), softmax_scale=1.0)
    assert reference.apply_sink(out, lse, torch.zeros(1)).flatten().tolist() == pytest.approx([0.75, 0.75])
