"""Item 6: which tokens are scored together: the cap held, every token that must choose scored once, and no request too long."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal.common.stepping.chunks import plan_scores
from hal.config import IndexerShape, LayerShape, ModelShape

from .helpers.latent_model import MODEL, WIDTHS
from .helpers.targets import BOUNDED

LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 60)), max_size=6)
TOPKS, CAPS = st.integers(1, 40), st.integers(1, 400)


def keys_seen(lengths: list[tuple[int, int]], tokens_per_key: int = 1) -> list[tuple[int, int]]:
    """(request, keys that it sees) of every new token; lengths: (new tokens, earlier ones)."""
    return [
        (request, (past + token + 1) // tokens_per_key) for request, (query, past) in enumerate(lengths) for token in range(query)
    ]


@BOUNDED
@given(lengths=LENGTHS, topk=TOPKS, cap=CAPS, pool=st.sampled_from([1, 1, 4]))
def test_tokens_that_see_more_than_topk_are_scored_once(lengths: list[tuple[int, int]], topk: int, cap: int, pool: int) -> None:
    seen = keys_seen(lengths, pool)
    chunks = plan_scores([q for q, _ in lengths], [q + p for q, p in lengths], topk, cap, pool)
    scored = [token for chunk in chunks for token in range(chunk.token_start, chunk.token_stop)]
    assert scored == sorted(set(scored))
    # A token that sees exactly topk keys selects them all, scored or not.
    assert [token for token in scored if seen[token][1] > topk] == [t for t, (_, keys) in enumerate(seen) if keys > topk]
    assert all(seen[token][1] >= topk for token in scored)


@BOUNDED
@given(lengths=LENGTHS, topk=TOPKS, cap=CAPS, pool=st.sampled_from([1, 1, 4]))
def test_a_matrix_is_within_the_cap_and_wide_enough(lengths: list[tuple[int, int]], topk: int, cap: int, pool: int) -> None:
    seen = keys_seen(lengths, pool)
    for chunk in plan_scores([q for q, _ in lengths], [q + p for q, p in lengths], topk, cap, pool):
        members = seen[chunk.token_start : chunk.token_stop]
        assert len(members) == 1 or len(members) * chunk.max_seq_len <= cap
        assert (chunk.request_start, chunk.request_stop) == (members[0][0], members[-1][0] + 1)
        assert chunk.max_seq_len >= max(keys for _, keys in members)


@BOUNDED
@given(lengths=LENGTHS, topk=TOPKS, cap=CAPS)
def test_no_two_neighbours_would_have_fitted_together(lengths: list[tuple[int, int]], topk: int, cap: int) -> None:
    """Otherwise a chunk for each token would pass the tests above."""
    chunks = plan_scores([q for q, _ in lengths], [q + p for q, p in lengths], topk, cap)
    for now, following in pairwise(chunks):
        if now.token_stop == following.token_start:
            widest = max(now.max_seq_len, following.max_seq_len)
            assert (following.token_stop - now.token_start) * widest > cap or (
                now.token_stop - now.token_start + 1
            ) * widest > cap


def test_chunks_are_those_worked_out_by_hand() -> None:
    (one,) = plan_scores([1] * 8, [10] * 8, 4, 80)
    assert (one.token_start, one.token_stop, one.max_seq_len) == (0, 8, 10)
    assert [chunk.token_stop - chunk.token_start for chunk in plan_scores([1] * 8, [10] * 8, 4, 30)] == [3, 3, 2]


def test_lengths_that_are_not_as_many_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        plan_scores([1, 2], [3], 4, 100)


def sparse_model(topk: int) -> ModelShape:
    """One layer that owns an indexer."""
    indexer = IndexerShape(topk=topk, num_heads=2, head_dim=4, owns=True)
    layers = (LayerShape(layer_id=0, kind="mla", indexer=indexer, **WIDTHS),)
    return ModelShape(**({name: getattr(MODEL, name) for name in MODEL.__slots__} | {"layers": layers}))


@pytest.mark.parametrize("longest", [256, 1000])
def test_a_request_whose_scores_exceed_the_cap_is_refused_with_both_figures(longest: int) -> None:
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 4}
    with pytest.raises(ValueError, match=rf"max_logits_bytes is {longest * 4 - 1}.*{longest}.*{longest * 4}"):
        hal.plan(sparse_model(5), "cpu", limits=hal.Limits(longest, max_logits_bytes=longest * 4 - 1, **limits), dtype="float32")
    assert hal.plan(sparse_model(5), "cpu", limits=hal.Limits(longest, max_logits_bytes=longest * 4, **limits), dtype="float32")


@pytest.fixture(scope="module")
def attention() -> hal.Attention:
    """Scores of at most 1000 pairs of a token and a key at once; requests of up to 256 tokens."""
    limits = hal.Limits(256, 6, 128, block_size=4, max_logits_bytes=4000)
    return hal.plan(sparse_model(5), "cpu", limits=limits, dtype="float32").open(512)


@BOUNDED
@given(lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200)), min_size=1, max_size=6), flags=st.booleans())
def test_a_step_keeps_the_plans_cap_in_either_phase(
    attention: hal.Attention, lengths: list[tuple[int, int]], flags: bool
) -> None:
    queries = [query for query, _ in lengths]
    table = np.arange(6 * 64, dtype=np.int32).reshape(6, 64)[: len(lengths)]
    batch = hal.Batch(queries, [q + c for q, c in lengths], table, is_prefilling=[flags] * len(lengths))
    for phase in attention.build(batch).phases:
        for chunks in phase.chunks.values():
            scored = [token for chunk in chunks for token in range(chunk.token_start, chunk.token_stop)]
            bounds = phase.key_bounds.tolist()
            assert scored == sorted(set(scored))
            assert set(scored) >= {token for token, bound in enumerate(bounds) if bound > 5}
            assert all((chunk.token_stop - chunk.token_start) * chunk.max_seq_len * 4 <= 4000 for chunk in chunks)
            assert all(bounds[t] <= chunk.max_seq_len for chunk in chunks for t in range(chunk.token_start, chunk.token_stop))


@pytest.mark.parametrize(("requests", "tokens"), [(1, 1), (4, 4), (3, 8)])
def test_a_captured_step_scores_for_the_longest_request(attention: hal.Attention, requests: int, tokens: int) -> None:
    """A graph is replayed with requests of any length, so that every token of it must be scored, over every key."""
    for phase in attention.build_for_capture(requests, tokens).phases:
        for chunks in phase.chunks.values():
            scored = [token for chunk in chunks for token in range(chunk.token_start, chunk.token_stop)]
            assert scored == list(range(phase.tokens.stop - phase.tokens.start))
            assert all(chunk.max_seq_len == attention.plan.limits.max_model_len for chunk in chunks)
