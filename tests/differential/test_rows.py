"""Item 3: from a request's own ids to cache rows, one id at a time."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hal import Parallel
from hal.common.contract.call_values import KVCache, Segment
from hal.common.contract.layouts import latent_layout
from hal.testing.case import FULL, fit_sizes
from hal.testing.suite.placement import place_of

from .helpers.dealing import deal
from .helpers.targets import ON_KERNELS, ints, open_target

Ids = list[list[int]]


def find_row(position: int, length: int, pages: list[int], block_size: int, stride: int, parallel: Parallel) -> int | None:
    """The row of one id, None where there is none on this rank."""
    if not 0 <= position < length:
        return None
    mine = deal(length, parallel.dcp, parallel.interleave)[parallel.dcp_rank]
    if position not in mine:
        return None
    column, offset = divmod(mine.index(position), block_size)
    if column >= len(pages) or pages[column] < 0:
        return None
    return pages[column] * stride + offset


@st.composite
def questions(draw) -> tuple[Ids, list[int], Ids, list[int]]:
    """Ids per token, each token's request, block tables with page 0 and holes, lengths."""
    requests, columns, width = draw(st.integers(1, 3)), draw(st.integers(0, 6)), draw(st.integers(1, 9))
    pages = draw(st.permutations(range(-3, requests * columns)))[: requests * columns]
    table = [pages[request * columns : (request + 1) * columns] for request in range(requests)]
    ids = st.integers(-2, 60) | st.sampled_from([-(2**31), 2**31 - 1])
    topk = draw(st.lists(st.lists(ids, min_size=width, max_size=width), max_size=5))
    owners = draw(st.lists(st.integers(0, requests - 1), min_size=len(topk), max_size=len(topk)))
    lengths = draw(st.lists(st.integers(0, 50), min_size=requests, max_size=requests))
    return topk, owners, table, lengths


@ON_KERNELS
@given(question=questions(), gap=st.integers(0, 3), ranks=st.integers(1, 4), run=st.sampled_from([1, 2, 4]), data=st.data())
def test_rows_are_those_of_each_id(target, question, gap: int, ranks: int, run: int, data) -> None:
    """-1 and other negatives, ids past the request's own length, other ranks' tokens, columns outside the table, holes: none.

    An id that occurs twice gives one row.
    """
    backend, declared = open_target(target, "rows_from_topk"), target.backend.capabilities
    sizes = fit_sizes(declared, FULL).block_sizes
    block_size = data.draw(st.sampled_from([size for size in sizes if size % run == 0] or [4 * sizes[0]]))
    where, (topk, owners, table, lengths) = place_of(backend), question
    ranks = ranks if declared.dcp else 1
    tensors = (
        ints(topk, where).reshape(len(topk), len(topk[0]) if topk else 3),
        ints(owners, where),
        ints(table, where).reshape(len(lengths), len(table[0])),
        ints(lengths, where),
    )
    for rank in range(ranks):
        parallel = Parallel(dcp=ranks, dcp_rank=rank, interleave=run) if ranks > 1 else Parallel()
        stride = block_size + gap
        rows, valid = backend.rows_from_topk(*tensors, block_size=block_size, rows_per_page=stride, parallel=parallel)
        for token, ids in enumerate(topk):
            request = owners[token]
            each = [find_row(one, lengths[request], table[request], block_size, stride, parallel) for one in set(ids)]
            expected = sorted(row for row in each if row is not None)
            assert valid[token] == len(expected)
            assert sorted(rows[token, : len(expected)].tolist()) == expected
            assert set(rows[token, len(expected) :].tolist()) <= {-1}


@ON_KERNELS
@given(question=questions(), ranks=st.integers(2, 4), run=st.sampled_from([1, 2, 4]))
def test_every_token_is_found_on_exactly_one_rank(target, question, ranks: int, run: int) -> None:
    backend = open_target(target, "rows_from_topk")
    if not target.backend.capabilities.dcp:
        return
    where, (topk, owners, _, lengths) = place_of(backend), question
    table = torch.arange(len(lengths) * 60, dtype=torch.int32, device=where).reshape(len(lengths), 60)
    ids = ints(topk, where).reshape(len(topk), len(topk[0]) if topk else 3)
    given_ = (ids, ints(owners, where), table, ints(lengths, where))
    places = [Parallel(dcp=ranks, dcp_rank=rank, interleave=run) for rank in range(ranks)]
    counts = [backend.rows_from_topk(*given_, block_size=4, parallel=place)[1] for place in places]
    own = [sum(0 <= one < lengths[request] for one in set(row)) for row, request in zip(topk, owners, strict=True)]
    assert torch.stack(counts).sum(0).tolist() == own


def test_page_zero_is_a_page_and_the_neighbours_keys_are_not_ours(target) -> None:
    """Two requests of four tokens: id 5 of the first would be the second's token 1, id 2 lies on page 0."""
    backend = open_target(target, "rows_from_topk")
    size = fit_sizes(target.backend.capabilities, FULL).block_sizes[0]
    where = place_of(backend)
    tensors = (ints([[5, 2, -1]], where), ints([0], where), ints([[0] * 8, [1] * 8], where), ints([4, 4], where))
    rows, valid = backend.rows_from_topk(*tensors, block_size=size, parallel=Parallel())
    assert (rows.tolist(), valid.tolist()) == ([[2 % size, -1, -1]], [1])


REPEATS = [[7, 7, 7, 7], [3, -1, 3, 0], [0, 5, 1, 0], [-1, -1, 2, -1], [2**31 - 1, 4, 4, 2**31 - 1]]


def test_an_id_that_repeats_gives_the_row_of_its_first_place(target) -> None:
    backend = open_target(target, "rows_from_topk")
    size, where = fit_sizes(target.backend.capabilities, FULL).block_sizes[0], place_of(backend)
    table, lengths = ints([[2, 0, 1, 5, 4, 6, 7, 3]], where), ints([8], where)
    owners = ints([0] * len(REPEATS), where)
    rows, valid = backend.rows_from_topk(ints(REPEATS, where), owners, table, lengths, block_size=size, parallel=Parallel())
    once = [list(dict.fromkeys(ids)) for ids in REPEATS]
    padded = ints([ids + [-1] * (4 - len(ids)) for ids in once], where)
    for distinct in (False, True):
        expected = backend.rows_from_topk(padded, owners, table, lengths, block_size=size, parallel=Parallel(), distinct=distinct)
        assert torch.equal(valid, expected[1])
        assert torch.equal(rows.sort(dim=1).values, expected[0].sort(dim=1).values)


def test_a_pool_that_repeats_gives_its_tokens_once(target) -> None:
    backend = open_target(target, "expand_pools")
    where = place_of(backend)
    found = backend.expand_pools(ints([[1, 1, -1, 1], [2, 0, 2, 0], [4, 4, 4, 4]], where), ints([10, 13, 16], where), 4, 20)
    kept = [sorted(token for token in row if token >= 0) for row in found.tolist()]
    assert kept == [[4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 8, 9, 10, 11, 12], []]


def test_rows_that_are_handed_to_sparse_attention_count_as_often_as_they_are_listed(target) -> None:
    """Ids are a set; rows are what a set was made into, and none is looked for twice."""
    backend = open_target(target, "sparse_mla")
    where, generator = place_of(backend), torch.Generator().manual_seed(0)
    latents, q = torch.randn(4, 48, generator=generator), torch.randn(1, 4, 48, generator=generator)
    cache = KVCache(latents.view(1, 4, 48).to(where), latent_layout(32, 16, "float32"), 4, 4)
    segment = Segment(cache, ints([[1, 3, 1, -1]], where), ints([3], where))
    out, _ = backend.sparse_mla(q.to(where), [segment], kv_lora_rank=32, softmax_scale=0.3)
    listed = latents[[1, 3, 1]]
    weights = torch.softmax(q[0] @ listed.T * 0.3, dim=-1)
    torch.testing.assert_close(out[0].cpu(), weights @ listed[:, :32], atol=1e-5, rtol=1e-5)
