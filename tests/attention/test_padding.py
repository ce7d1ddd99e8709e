"""Padded requests and tokens for graph replay, and made-up steps for capture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hal

from .helpers.batches import batches
from .helpers.builder_oracle import check_engine_order, check_execution_order, facts_of
from .helpers.engine import Engine, snapshot, unchanged
from .helpers.gqa_run import run_step
from .helpers.histories import BOUNDED
from .helpers.shapes import gqa, mla, model, sparse

LIMITS = hal.Limits(64, 8, 40, block_size=4)


@pytest.fixture(scope="module")
def attention() -> hal.Attention:
    """Two cache groups."""
    return hal.plan(model(gqa(0), gqa(1, window=8)), "cpu", limits=LIMITS, dtype="float32").open(1000)


@BOUNDED
@given(drawn=batches(num_groups=2), earlier=batches(num_groups=2), data=st.data())
def test_tails_are_neutral_whatever_was_there(attention: hal.Attention, drawn, earlier, data) -> None:
    batch, flags = drawn
    tokens = data.draw(st.integers(max(batch.num_tokens, batch.num_reqs), 40))
    requests = data.draw(st.integers(batch.num_reqs, min(8, tokens)))
    padded = hal.Batch(
        batch.query_lens,
        batch.seq_lens,
        batch.block_tables,
        num_tokens_padded=tokens,
        num_reqs_padded=requests,
        is_prefilling=flags,
    )
    attention.build(earlier[0])
    metadata = attention.build(padded)
    facts = facts_of(batch, 4, 1, 2, flags)
    check_engine_order(metadata, facts)
    check_execution_order(metadata, facts)
    live, real = batch.num_reqs, batch.num_tokens
    assert metadata.num_tokens_padded == tokens
    assert metadata.query_start_loc.tolist()[live:] == [real] * (requests - live + 1)
    assert metadata.seq_lens.tolist()[live:] == [0] * (requests - live)
    assert metadata.req_id_per_token.tolist()[real:] == [0] * (tokens - real)
    assert len(metadata.positions) == tokens
    for step in metadata.groups:
        assert step.slot_mapping.tolist()[real:] == [-1] * (tokens - real)
        assert not step.batch.block_table[live:].any()
        assert step.batch.block_table.shape[0] == requests


def made_plan(num_spec_tokens: int, *layers: hal.config.LayerShape) -> hal.Plan:
    return hal.plan(model(*layers), "cpu", limits=LIMITS, dtype="float32", num_spec_tokens=num_spec_tokens)


REPLAYS = {
    "decodes": (0, 1, [1, 1], [9, 5]),
    "one_decode": (0, 1, [1], [9]),
    "ragged_short_extends": (2, 3, [3, 2], [9, 5]),
    "nothing": (0, 1, [], []),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_a_graph_captured_with_more_requests_finds_nothing_past_a_steps_own(name: str) -> None:
    """What the captured launches hold are the phase's tensors of that time: as they were, for a step of fewer requests."""
    num_spec_tokens, query_len, query_lens, seq_lens = REPLAYS[name]
    pooled = sparse(3, topk=4)
    pooled = replace(pooled, indexer=replace(pooled.indexer, pool=2))
    attention = made_plan(num_spec_tokens, gqa(0), mla(1), sparse(2, topk=4), pooled).open(100)
    captured = attention.build_for_capture(6, 6 * query_len).decode
    pages = np.arange(24).reshape(8, 3)
    attention.build(hal.Batch([5] * 8, [12] * 8, pages))
    attention.build(hal.Batch([5, 1] * 4, [12, 9] * 4, pages))
    real, tokens = len(query_lens), sum(query_lens)
    padding = {"num_reqs_padded": 6, "num_tokens_padded": 6 * query_len}
    attention.build(hal.Batch(query_lens, seq_lens, pages[:real], **padding))
    assert captured.key_bounds.tolist()[tokens:] == captured.req_id.tolist()[tokens:] == [0] * (6 * query_len - tokens)
    for batch in captured.batches:
        assert batch.query_start_loc.tolist() == [*np.cumsum([0, *query_lens]), *[tokens] * (6 - real)]
        assert batch.seq_lens.tolist()[real:] == [0] * (6 - real)
        assert not batch.block_table[real:].any()
        if batch.key_stops is not None:
            assert not batch.key_stops[tokens:].any()


def test_padded_requests_are_no_prefills(attention: hal.Attention) -> None:
    attention.build(hal.Batch([8, 8, 8, 8], [8, 8, 8, 8], np.arange(8).reshape(4, 2)))
    metadata = attention.build(hal.Batch([1, 1], [9, 5], [[0, 1, 2], [3, 4, 0]], num_reqs_padded=4, num_tokens_padded=4))
    assert (metadata.num_decodes, metadata.num_prefills) == (2, 0)


@pytest.mark.parametrize(
    ("padding", "words"),
    [
        ({"num_tokens_padded": 2}, ["num_tokens_padded is 2", "3", "40"]),
        ({"num_tokens_padded": 41}, ["num_tokens_padded is 41", "40"]),
        ({"num_reqs_padded": 1}, ["num_reqs_padded is 1", "2", "8"]),
        ({"num_reqs_padded": 9, "num_tokens_padded": 9}, ["num_reqs_padded is 9", "8"]),
        ({"num_reqs_padded": 5}, ["num_reqs_padded", "5", "3"]),
        ({"num_reqs_padded": 5, "num_tokens_padded": 4}, ["num_reqs_padded", "5", "4"]),
    ],
    ids=["too_few_tokens", "too_many_tokens", "too_few_requests", "too_many_requests", "unpadded_tokens", "fewer_tokens"],
)
def test_padding_that_does_not_fit_is_refused(attention: hal.Attention, padding: dict, words: list[str]) -> None:
    with pytest.raises(hal.BatchError) as error:
        attention.build(hal.Batch([1, 2], [9, 5], [[0, 1, 2], [3, 4, 0]], **padding))
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(("num_reqs", "num_tokens"), [(1, 1), (3, 3), (8, 40), (7, 40), (5, 13)])
def test_a_step_for_capture_spreads_its_tokens_evenly(attention: hal.Attention, num_reqs: int, num_tokens: int) -> None:
    metadata = attention.build_for_capture(num_reqs, num_tokens)
    lengths = metadata.query_start_loc.diff().tolist()
    assert (len(lengths), sum(lengths)) == (num_reqs, num_tokens)
    assert max(lengths) - min(lengths) <= 1
    assert all(seq >= query for seq, query in zip(metadata.seq_lens.tolist(), lengths, strict=True))


@pytest.mark.parametrize(("num_reqs", "num_tokens"), [(0, 0), (0, 4), (4, 3), (-1, 2)])
def test_a_step_for_capture_needs_a_token_per_request(attention: hal.Attention, num_reqs: int, num_tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"{num_tokens} tokens.*{num_reqs} requests"):
        attention.build_for_capture(num_reqs, num_tokens)


@pytest.mark.parametrize(("num_reqs", "num_tokens"), [(9, 9), (8, 41), (1, 41), (1, 2**70), (10**12, 10**12)])
def test_a_step_for_capture_keeps_the_limits(attention: hal.Attention, num_reqs: int, num_tokens: int) -> None:
    with pytest.raises(hal.BatchError):
        attention.build_for_capture(num_reqs, num_tokens)


@pytest.mark.parametrize("count", [2.0, "2", None, True, np.True_], ids=repr)
def test_a_step_for_capture_is_counted_in_whole_numbers(attention: hal.Attention, count: object) -> None:
    before = attention.build_for_capture(np.int64(2), np.int32(3)).step_id
    for name, sizes in (("num_reqs", (count, 4)), ("num_tokens", (1, count))):
        with pytest.raises(hal.InputError, match=f"{name} is "):
            attention.build_for_capture(*sizes)
    assert attention.build_for_capture(2, 3).step_id == before + 1


def test_a_step_for_capture_writes_to_nobodys_page() -> None:
    """Capturing a graph in a running engine must leave the requests' pages alone."""
    engine = Engine(model(gqa()), dtype="float64")
    run_step(engine, [(0, 5), (1, 3)])
    before = snapshot(engine.attention)
    metadata = engine.attention.build_for_capture(2, 2)
    engine.attention.attend(0, engine.random(2, 4, 8), engine.random(2, 2, 8), engine.random(2, 2, 6), metadata)
    assert unchanged(engine.attention, before)
    run_step(engine, [(0, 1), (1, 1)])
