"""Item 7: which requests of a step are decodes, where they stand, and what padding adds: nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hal

from .helpers.latent_model import MODEL
from .helpers.targets import BOUNDED

SPEC_TOKENS = [0, 1, 3]
MOST_REQUESTS, MOST_TOKENS = 8, 48


@pytest.fixture(scope="module", params=SPEC_TOKENS, ids=lambda tokens: f"spec{tokens}")
def attention(request: pytest.FixtureRequest) -> hal.Attention:
    limits = hal.Limits(64, MOST_REQUESTS, MOST_TOKENS, block_size=4)
    return hal.plan(MODEL, "cpu", limits=limits, dtype="float32", num_spec_tokens=request.param).open(128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Lengths of a step's requests, and what an engine may add: who is still being prefilled, padding."""

    query_lens: list[int]
    contexts: list[int]
    prefilling: list[bool] | None
    padded_reqs: int | None = None
    padded_tokens: int | None = None

    def is_decode(self, threshold: int) -> list[bool]:
        """At most `threshold` new tokens, none included, and not being prefilled."""
        flags = self.prefilling or [False] * len(self.query_lens)
        return [query <= threshold and not flag for query, flag in zip(self.query_lens, flags, strict=True)]

    def batch(self) -> hal.Batch:
        """The step in the words of an engine."""
        seqs = [query + past for query, past in zip(self.query_lens, self.contexts, strict=True)]
        table = np.arange(len(seqs) * 16, dtype=np.int32).reshape(len(seqs), 16)
        padding = {"num_reqs_padded": self.padded_reqs, "num_tokens_padded": self.padded_tokens}
        return hal.Batch(self.query_lens, seqs, table, is_prefilling=self.prefilling, **padding)


@st.composite
def steps(draw, longest: int = 6) -> Step:
    queries = draw(st.lists(st.integers(0, longest), max_size=MOST_REQUESTS))
    count, tokens = len(queries), sum(queries)
    padded_tokens = draw(st.none() | st.integers(tokens, MOST_TOKENS))
    room = min(MOST_REQUESTS, tokens if padded_tokens is None else padded_tokens)
    padded_reqs = draw(st.none() | st.integers(count, room)) if count <= room else None
    return Step(
        query_lens=queries,
        contexts=draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)),
        prefilling=draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count)),
        padded_reqs=padded_reqs,
        padded_tokens=padded_tokens,
    )


@BOUNDED
@given(step=steps())
def test_decodes_are_the_short_ones_that_are_not_prefilled(attention: hal.Attention, step: Step) -> None:
    """In any order of requests, with rows of no new token among them, padded or not: padding is neither."""
    decodes = step.is_decode(1 + attention.plan.num_spec_tokens)
    metadata = attention.build(step.batch())
    queries = step.query_lens
    assert metadata.num_decodes == sum(decodes)
    assert metadata.num_prefills == len(decodes) - sum(decodes)
    assert metadata.num_decode_tokens == sum(query for query, is_decode in zip(queries, decodes, strict=True) if is_decode)
    assert metadata.num_decode_tokens + metadata.num_prefill_tokens == sum(queries)
    for phase, wanted in ((metadata.decode, True), (metadata.prefill, False)):
        mine = [query for query, is_decode in zip(queries, decodes, strict=True) if is_decode == wanted]
        assert (phase is None) == (sum(mine) == 0)
        if phase is not None:
            assert phase.batches[0].query_start_loc.diff().tolist() == mine
            assert phase.batches[0].max_query_len == max(mine)


@BOUNDED
@given(step=steps(), threshold=st.integers(1, 4))
def test_order_puts_decodes_first_and_moves_nothing_else(step: Step, threshold: int) -> None:
    decodes = step.is_decode(threshold)
    names = range(len(decodes))
    expected = [name for name in names if decodes[name]] + [name for name in names if not decodes[name]]
    assert step.batch().order(threshold).tolist() == expected


@BOUNDED
@given(step=steps(longest=1))
def test_single_token_decodes_need_no_second_order(attention: hal.Attention, step: Step) -> None:
    """The fast path: everything is a decode, empty rows included, and nothing is moved."""
    if step.prefilling is not None and any(step.prefilling):
        return
    metadata = attention.build(step.batch())
    assert metadata.token_order is None
    assert metadata.prefill is None
    assert metadata.num_decodes == len(step.query_lens)


@BOUNDED
@given(step=steps())
def test_padding_changes_no_token_of_a_step(attention: hal.Attention, step: Step) -> None:
    """Tokens to slot -1 of request 0; requests without tokens or keys, on page 0; the last start repeated."""
    attention.build(Step(query_lens=[6] * 8, contexts=[50] * 8, prefilling=[True] * 8).batch())
    metadata = attention.build(step.batch())
    count, tokens = len(step.query_lens), sum(step.query_lens)
    extra_reqs = (step.padded_reqs or count) - count
    extra_tokens = (tokens if step.padded_tokens is None else step.padded_tokens) - tokens
    assert metadata.slot_mapping[tokens:].tolist() == [-1] * extra_tokens
    assert metadata.req_id_per_token[tokens:].tolist() == [0] * extra_tokens
    assert metadata.positions[tokens:].tolist() == [0] * extra_tokens
    assert metadata.seq_lens[count:].tolist() == [0] * extra_reqs
    assert metadata.query_start_loc[count:].tolist() == [tokens] * (extra_reqs + 1)
    assert metadata.block_table[count:].abs().sum() == 0


@BOUNDED
@given(step=steps())
def test_a_device_batch_is_split_like_a_host_batch(attention: hal.Attention, step: Step) -> None:
    """Decodes first, as device batches have to be; the host knows lengths or only how many decode."""
    threshold = 1 + attention.plan.num_spec_tokens
    order = step.batch().order(threshold).tolist()
    queries, contexts = [step.query_lens[i] for i in order], [step.contexts[i] for i in order]
    seqs = [query + past for query, past in zip(queries, contexts, strict=True)]
    decodes = sum(step.is_decode(threshold))
    if not queries:
        return
    metadata = attention.build(
        hal.Batch.from_device(
            torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
            torch.tensor(seqs, dtype=torch.int32),
            torch.arange(len(seqs) * 16, dtype=torch.int32).reshape(len(seqs), 16),
            num_tokens=sum(queries),
            max_query_len=max(queries),
            max_seq_len=max(seqs),
            num_decodes=decodes,
            query_lens=queries,
            seq_lens_upper=seqs,
        )
    )
    assert metadata.num_decodes == decodes
    for phase, part in ((metadata.decode, queries[:decodes]), (metadata.prefill, queries[decodes:])):
        assert (phase is None) == (sum(part) == 0)
        if phase is not None:
            assert phase.batches[0].query_start_loc.diff().tolist() == part
