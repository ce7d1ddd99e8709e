"""Item 12: queries without any key give 0 and -inf, exactly, whatever lay in the buffer; their neighbours lose nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hal.common.contract.call_values import PagedBatch, Segment, VarlenBatch
from hal.common.contract.layouts import attention_layout, latent_layout
from hal.common.contract.masking import Masking
from hal.common.vendor.tensors import settle_results
from hal.testing.case import FULL, fit_sizes
from hal.testing.suite.placement import place_of

from .helpers.softmax import attend, check_rows, draw_cache
from .helpers.targets import BOUNDED, ON_KERNELS, ints, open_target

HEADS, KV_HEADS, WIDTH, VALUE = 4, 2, 16, 16
LORA, ROPE = 16, 16
SEEDS = st.integers(0, 2**31)
# New tokens, and keys in the cache; a request may have none although it has new tokens, as padded ones do.
REQUESTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 1, 5, 9])), min_size=1, max_size=4)


def starts(lengths: list[int]) -> list[int]:
    """Where each run begins, and where the last ends."""
    return [sum(lengths[:index]) for index in range(len(lengths) + 1)]


@ON_KERNELS
@given(requests=REQUESTS, seed=SEEDS)
def test_queries_without_keys_give_0_over_pages(target, requests: list[tuple[int, int]], seed: int) -> None:
    backend = open_target(target, "paged_attention")
    where, generator = place_of(backend), torch.Generator().manual_seed(seed)
    queries, lengths = [query for query, _ in requests], [keys for _, keys in requests]
    size = fit_sizes(target.backend.capabilities, FULL).block_sizes[0]
    columns = -(-9 // size)
    tables = [[request * columns + column for column in range(columns)] for request in range(len(requests))]
    drawn = draw_cache(attention_layout(KV_HEADS, WIDTH, VALUE, "float32"), len(requests) * columns, size, generator, where)
    q = torch.randn(sum(queries), HEADS, WIDTH, generator=generator)
    batch = PagedBatch(ints(starts(queries), where), ints(lengths, where), ints(tables, where), max(queries), max(lengths))
    out = torch.full((sum(queries), HEADS, VALUE), torch.nan, device=where)
    result, lse = backend.paged_attention(q.to(where), drawn.cache, batch, softmax_scale=0.3, need_lse=True, out=out)
    assert result is out
    expected = []
    for request, (query, length) in enumerate(requests):
        rows = drawn.of(tables[request], length)
        for index in range(query):
            seen = rows[: max(0, length - query + index + 1)]
            keys = [[row[head * WIDTH : (head + 1) * WIDTH] for row in seen] for head in range(KV_HEADS)]
            offset = KV_HEADS * WIDTH
            values = [[row[offset + head * VALUE : offset + (head + 1) * VALUE] for row in seen] for head in range(KV_HEADS)]
            token = q[len(expected)].tolist()
            expected.append([attend(token[h], keys[h // 2], values[h // 2], 0.3) for h in range(HEADS)])
    check_rows(out, lse, expected)


@ON_KERNELS
@given(requests=REQUESTS, seed=SEEDS)
def test_queries_without_keys_give_0_over_contiguous_keys(target, requests: list[tuple[int, int]], seed: int) -> None:
    backend = open_target(target, "varlen_attention")
    where, generator = place_of(backend), torch.Generator().manual_seed(seed)
    queries, lengths = [query for query, _ in requests], [keys for _, keys in requests]
    q = torch.randn(sum(queries), HEADS, WIDTH, generator=generator)
    k = torch.randn(sum(lengths), HEADS, WIDTH, generator=generator)
    v = torch.randn(sum(lengths), HEADS, VALUE, generator=generator)
    at_q, at_k = starts(queries), starts(lengths)
    out, lse = backend.varlen_attention(
        *(tensor.to(where) for tensor in (q, k, v)),
        VarlenBatch(
            q_start_loc=ints(at_q, where),
            k_start_loc=ints(at_k, where),
            max_query_len=max(queries),
            max_seq_len=max(lengths),
        ),
        softmax_scale=0.3,
        masking=Masking(causal=False),
        need_lse=True,
        out=torch.full((sum(queries), HEADS, VALUE), torch.nan, device=where),
    )
    expected = [
        [
            attend(q[token, h].tolist(), k[at_k[r] : at_k[r + 1], h].tolist(), v[at_k[r] : at_k[r + 1], h].tolist(), 0.3)
            for h in range(HEADS)
        ]
        for r in range(len(requests))
        for token in range(at_q[r], at_q[r + 1])
    ]
    check_rows(out, lse, expected)


@ON_KERNELS
@given(counts=st.lists(st.sampled_from([0, 0, 1, 3, 7]), min_size=1, max_size=5), lists=st.integers(1, 2), seed=SEEDS)
def test_queries_without_keys_give_0_over_chosen_rows(target, counts: list[int], lists: int, seed: int) -> None:
    backend = open_target(target, "sparse_mla")
    where, generator = place_of(backend), torch.Generator().manual_seed(seed)
    size = fit_sizes(target.backend.capabilities, FULL).block_sizes[0]
    drawn = draw_cache(latent_layout(LORA, ROPE, "float32"), 3, size, generator, where)
    usable = [page * drawn.cache.page_stride + offset for page in range(3) for offset in range(size)]
    segments, chosen = [], [[] for _ in counts]
    for _ in range(lists):
        picks = [torch.randint(len(usable), (count,), generator=generator).tolist() for count in counts]
        rows = [[usable[pick] for pick in row] + [-1] * (8 - len(row)) for row in picks]
        for own, row, count in zip(chosen, rows, counts, strict=True):
            own += row[:count]
        segments.append(Segment(drawn.cache, ints(rows, where), ints(counts, where)))
    q = torch.randn(len(counts), HEADS, LORA + ROPE, generator=generator)
    out, lse = backend.sparse_mla(
        q.to(where),
        segments,
        kv_lora_rank=LORA,
        softmax_scale=0.3,
        need_lse=True,
        out=torch.full((len(counts), HEADS, LORA), torch.nan, device=where),
    )
    expected = [
        [attend(q[t, h].tolist(), [drawn.rows[r] for r in own], [drawn.rows[r][:LORA] for r in own], 0.3) for h in range(HEADS)]
        for t, own in enumerate(chosen)
    ]
    check_rows(out, lse, expected)


@BOUNDED
@given(
    lengths=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    level=st.sampled_from([-math.inf, math.inf, math.nan, -1e30 * math.log(2), -3.4e38, 0.0]),
    rest=st.sampled_from([0.0, math.nan, math.inf, 7.0]),
    gives_out=st.booleans(),
)
def test_what_a_library_leaves_in_rows_without_keys_is_replaced(
    lengths: list[int], level: float, rest: float, gives_out: bool
) -> None:
    """Finite stand-ins for -inf, +inf, NaN and garbage, as vendors' kernels leave them."""
    tokens = len(lengths)
    result, lse = torch.ones(tokens, 3, 6), torch.full((tokens, 3), 0.25)
    for token, length in enumerate(lengths):
        if not length:
            result[token], lse[token] = rest, level
    out = torch.full((tokens, 2, 4), torch.nan) if gives_out else None
    settled, levels = settle_results(result, lse, ints(lengths), 2, 4, out)
    assert settled.tolist() == [[[float(length > 0)] * 4] * 2 for length in lengths]
    assert levels.tolist() == [[0.25 if length else -math.inf] * 2 for length in lengths]
    if out is not None:
        assert settled.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("call", ["paged_attention", "varlen_attention", "sparse_mla"])
def test_zero_tokens_are_empty_results(target, call: str) -> None:
    backend = open_target(target, call)
    where = place_of(backend)
    size = fit_sizes(target.backend.capabilities, FULL).block_sizes[0]
    generator = torch.Generator()
    none = ints([], where)
    if call == "paged_attention":
        cache = draw_cache(attention_layout(KV_HEADS, WIDTH, VALUE, "float32"), 1, size, generator, where).cache
        batch = PagedBatch(ints([0], where), none, none.reshape(0, 2), 0, 0)
        out, lse = backend.paged_attention(
            torch.zeros(0, HEADS, WIDTH, device=where), cache, batch, softmax_scale=1.0, need_lse=True
        )
    elif call == "varlen_attention":
        empty = torch.zeros(0, HEADS, WIDTH, device=where)
        at = ints([0], where)
        nobody = VarlenBatch(q_start_loc=at, k_start_loc=at, max_query_len=0, max_seq_len=0)
        out, lse = backend.varlen_attention(empty, empty, empty, nobody, softmax_scale=1.0, need_lse=True)
    else:
        cache = draw_cache(latent_layout(LORA, ROPE, "float32"), 1, size, generator, where).cache
        segment = Segment(cache, none.reshape(0, 4), none)
        q = torch.zeros(0, HEADS, LORA + ROPE, device=where)
        out, lse = backend.sparse_mla(q, (segment,), kv_lora_rank=LORA, softmax_scale=1.0, need_lse=True)
    assert (out.shape[0], lse.shape) == (0, (0, HEADS))
