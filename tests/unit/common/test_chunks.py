"""How context and scores are cut: everything once, within the limits, on page boundaries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.chunks import ContextPiece, plan_context, plan_scores

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
CONTEXTS = st.lists(st.one_of(st.just(0), st.integers(0, 90)), max_size=8)
LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 60)), max_size=6)


@BOUNDED
@given(contexts=CONTEXTS, alignment=st.sampled_from([1, 2, 4, 16]), extra=st.integers(0, 50))
def test_context_is_covered_once_and_within_the_rows(contexts: list[int], alignment: int, extra: int) -> None:
    max_rows = alignment + extra
    chunks = plan_context(contexts, max_rows, alignment)
    pieces = [piece for chunk in chunks for piece in chunk]
    seen = [(piece.request, position) for piece in pieces for position in range(piece.start, piece.stop)]
    assert seen == [(request, position) for request, length in enumerate(contexts) for position in range(length)]
    assert all(sum(piece.stop - piece.start for piece in chunk) <= max_rows for chunk in chunks)
    assert all(chunk and all(piece.start < piece.stop for piece in chunk) for chunk in chunks)


@BOUNDED
@given(contexts=CONTEXTS, alignment=st.sampled_from([1, 2, 4, 16]), extra=st.integers(0, 50))
def test_only_a_chunks_first_piece_continues_and_cuts_are_aligned(contexts: list[int], alignment: int, extra: int) -> None:
    for chunk in plan_context(contexts, alignment + extra, alignment):
        assert [piece.start for piece in chunk[1:]] == [0] * (len(chunk) - 1)
        assert chunk[0].start % alignment == 0
        for piece in chunk:
            assert piece.stop == contexts[piece.request] or piece.stop % alignment == 0
        assert [piece.request for piece in chunk] == sorted({piece.request for piece in chunk})


@BOUNDED
@given(contexts=CONTEXTS, pages=st.integers(1, 5))
def test_no_two_neighbours_would_have_fitted_in_one_chunk(contexts: list[int], pages: int) -> None:
    """Otherwise one piece per chunk would pass every test above."""
    rows = 4 * pages
    sizes = [[piece.stop - piece.start for piece in chunk] for chunk in plan_context(contexts, rows, 4)]
    assert all(sum(now) + min(following[0], 4) > rows for now, following in pairwise(sizes))


def test_a_long_context_by_hand() -> None:
    first, second, third = plan_context([5, 0, 21], 12, 4)
    assert first == (ContextPiece(request=0, start=0, stop=5), ContextPiece(request=2, start=0, stop=4))
    assert second == (ContextPiece(request=2, start=4, stop=16),)
    assert third == (ContextPiece(request=2, start=16, stop=21),)


def test_rows_that_hold_no_page_are_refused_with_the_figures() -> None:
    with pytest.raises(ValueError, match=r"15 rows.*16"):
        plan_context([100], 15, 16)


@BOUNDED
@given(lengths=LENGTHS, topk=st.integers(1, 40), cap=st.integers(1, 400), shared=st.sampled_from([1, 2, 4]))
def test_scored_tokens_are_those_that_see_more_than_topk(lengths: Any, topk: int, cap: int, shared: int) -> None:
    query_lens, seq_lens = [query for query, _ in lengths], [query + past for query, past in lengths]
    keys_seen = [(seq - query + i + 1) // shared for query, seq in zip(query_lens, seq_lens, strict=True) for i in range(query)]
    chunks = plan_scores(query_lens, seq_lens, topk, cap, shared)
    scored = [token for chunk in chunks for token in range(chunk.token_start, chunk.token_stop)]
    # Tokens that see exactly topk keys may be either: they select them all.
    must = [token for token, keys in enumerate(keys_seen) if keys > topk]
    assert [token for token in scored if keys_seen[token] > topk] == must
    assert scored == sorted(set(scored))
    assert all(keys_seen[token] >= topk for token in scored)


@BOUNDED
@given(lengths=LENGTHS, topk=st.integers(1, 40), cap=st.integers(1, 400), shared=st.sampled_from([1, 2, 4]))
def test_a_score_matrix_stays_within_the_cap_and_wide_enough(lengths: Any, topk: int, cap: int, shared: int) -> None:
    query_lens, seq_lens = [query for query, _ in lengths], [query + past for query, past in lengths]
    owner = [request for request, query in enumerate(query_lens) for _ in range(query)]
    for chunk in plan_scores(query_lens, seq_lens, topk, cap, shared):
        rows = chunk.token_stop - chunk.token_start
        assert rows == 1 or rows * chunk.max_seq_len <= cap
        members = owner[chunk.token_start : chunk.token_stop]
        assert chunk.request_start == min(members)
        assert chunk.request_stop == max(members) + 1
        assert chunk.max_seq_len >= max(seq_lens[request] // shared for request in members)


def test_scores_are_grouped_as_far_as_the_cap_allows() -> None:
    (one,) = plan_scores([1] * 8, [10] * 8, 4, 80)
    assert (one.token_start, one.token_stop, one.max_seq_len) == (0, 8, 10)
    assert [chunk.token_stop - chunk.token_start for chunk in plan_scores([1] * 8, [10] * 8, 4, 30)] == [3, 3, 2]


def test_lengths_that_are_not_as_many_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        plan_scores([1, 2], [3], 4, 100)
