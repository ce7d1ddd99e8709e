"""Item 5: context gathered piece by piece, against laying pages end to end one at a time."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import hal
from hal.common.contract.step import ContextPiece
from hal.common.stepping.chunks import plan_context

from .helpers.latent_model import MODEL
from .helpers.targets import BOUNDED

CONTEXTS = st.lists(st.one_of(st.just(0), st.integers(0, 90)), max_size=8)
ALIGNMENTS = st.sampled_from([1, 2, 4, 16])


def fill(contexts: list[int], rows: int, page: int) -> list[list[tuple[int, int]]]:
    """(request, position) of every context token, chunk by chunk: a page goes where it fits, else into a new chunk."""
    chunks: list[list[tuple[int, int]]] = [[]]
    for request, length in enumerate(contexts):
        for start in range(0, length, page):
            tokens = [(request, position) for position in range(start, min(start + page, length))]
            if len(chunks[-1]) + len(tokens) > rows:
                chunks.append([])
            chunks[-1] += tokens
    return [chunk for chunk in chunks if chunk]


@BOUNDED
@given(contexts=CONTEXTS, alignment=ALIGNMENTS, extra=st.integers(0, 50))
def test_chunks_are_pages_laid_end_to_end(contexts: list[int], alignment: int, extra: int) -> None:
    chunks = plan_context(contexts, alignment + extra, alignment)
    tokens = [[(piece.request, p) for piece in chunk for p in range(piece.start, piece.stop)] for chunk in chunks]
    assert tokens == fill(contexts, alignment + extra, alignment)


@BOUNDED
@given(contexts=CONTEXTS, alignment=ALIGNMENTS, extra=st.integers(0, 50))
def test_rows_are_kept_and_only_a_first_piece_continues_on_a_page(contexts: list[int], alignment: int, extra: int) -> None:
    for chunk in plan_context(contexts, alignment + extra, alignment):
        assert sum(piece.stop - piece.start for piece in chunk) <= alignment + extra
        assert [piece.start for piece in chunk[1:]] == [0] * (len(chunk) - 1)
        assert chunk[0].start % alignment == 0
        assert all(piece.start < piece.stop for piece in chunk)
        assert all(piece.stop in (contexts[piece.request], piece.stop // alignment * alignment) for piece in chunk)
        assert [piece.request for piece in chunk] == sorted({piece.request for piece in chunk})


def test_pieces_of_a_long_context_are_those_worked_out_by_hand() -> None:
    first, second, third = plan_context([5, 0, 21], 12, 4)
    assert first == (ContextPiece(request=0, start=0, stop=5), ContextPiece(request=2, start=0, stop=4))
    assert second == (ContextPiece(request=2, start=4, stop=16),)
    assert third == (ContextPiece(request=2, start=16, stop=21),)


def test_rows_that_hold_no_page_are_refused_with_the_figures() -> None:
    with pytest.raises(ValueError, match=r"15 rows.*16"):
        plan_context([100], 15, 16)


@pytest.fixture(scope="module")
def attention() -> hal.Attention:
    return hal.plan(MODEL, "cpu", limits=hal.Limits(256, 24, 512, block_size=4), dtype="float32").open(24 * 64)


@BOUNDED
@given(lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10) | st.integers(180, 236)), min_size=1, max_size=24))
@example(lengths=[(20, 236)] * 24)
def test_what_a_step_gathers_is_every_context_token_once_in_buffers_that_the_plan_has(
    attention: hal.Attention, lengths: list[tuple[int, int]]
) -> None:
    queries, contexts = [query for query, _ in lengths], [past for _, past in lengths]
    table = np.arange(24 * 64, dtype=np.int32).reshape(24, 64)[: len(lengths)]
    metadata = attention.build(hal.Batch(queries, [q + c for q, c in lengths], table))
    (rows,) = {buffer.shape[0] for buffer in attention.plan.buffers if buffer.name == "context"}
    prefill = metadata.prefill
    if prefill is None:
        return
    members = [request for request in range(len(lengths)) if queries[request] > 1]
    for runs in prefill.runs.values():
        for run in (run for run in runs if run.form == "decompressed"):
            mine = members[run.requests]
            wanted = fill([contexts[request] for request in mine], rows, 4)
            assert [[(p.request, i) for p in chunk.pieces for i in range(p.start, p.stop)] for chunk in run.context] == wanted
            starts = [0, *accumulate(queries[request] for request in mine)]
            for chunk, tokens in zip(run.context, wanted, strict=True):
                requests = range(tokens[0][0], tokens[-1][0] + 1)
                first, last = starts[requests[0]], starts[requests[-1] + 1]
                own = [[position for request, position in tokens if request == each] for each in requests]
                assert chunk.num_keys == len(tokens) <= rows
                assert chunk.tokens == slice(first, last)
                assert chunk.q_start_loc.tolist() == [
                    starts[each] - starts[requests[0]] for each in (*requests, requests[-1] + 1)
                ]
                assert chunk.k_start_loc.tolist() == [0, *accumulate(map(len, own))]
                assert chunk.first_key.tolist() == [positions[0] if positions else 0 for positions in own]
                assert chunk.k_start_loc.dtype == torch.int32
