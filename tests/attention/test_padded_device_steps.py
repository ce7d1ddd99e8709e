"""Padded device batches: their tails are neutral and come back as zeros, whether or not the host could see the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers.device_batches import BLOCKS, KNOWN, LIMITS, make_tables, on_device
from .helpers.engine import Engine, snapshot, unchanged
from .helpers.mla_run import bind
from .helpers.past_engine import make_engine
from .helpers.past_engine import on_device as from_host
from .helpers.shapes import gqa, mla, model, sparse

STEPS = {
    "decodes": ([1, 1, 1], [5, 9, 12]),
    "mixed": ([1, 1, 7, 4], [5, 33, 7, 40]),
    "prefills": ([6, 3], [12, 20]),
    "empty_requests_last": ([1, 7, 0, 0], [5, 9, 0, 0]),
}
PADDED = 20
LAYERS = {"gqa": gqa(), "window": gqa(window=3), "mla": mla(), "sparse": sparse(topk=5)}


def take_away(tables: np.ndarray, is_seen: bool) -> np.ndarray:
    """The tables, with an id that names no page where the host shall not go by what it sees."""
    if not is_seen:
        tables[0, 0] = BLOCKS
    return tables


@pytest.mark.parametrize("slots", [None, 17], ids=["own_slots", "given_slots"])
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("name", STEPS)
def test_padded_tokens_belong_to_no_request(name: str, known: str, is_seen: bool, slots: int | None) -> None:
    queries, lengths = STEPS[name]
    real, tables = sum(queries), take_away(make_tables(len(queries)), is_seen)
    given = None if slots is None else torch.full((PADDED,), slots)
    batch = on_device(queries, lengths, tables, known, num_tokens=PADDED, slot_mapping=given, **_decodes(queries, known))
    metadata = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64").open(BLOCKS).build(batch)
    assert metadata.query_start_loc.tolist() == [0, *np.cumsum(queries).tolist()]
    assert metadata.num_tokens_padded == PADDED
    assert not metadata.positions[real:].any()
    assert not metadata.req_id_per_token[real:].any()
    assert set(metadata.slot_mapping[real:].tolist()) == {-1}
    for phase in metadata.phases:
        behind = max(0, real - phase.tokens.start)
        assert not phase.key_bounds[behind:].any()
        assert not phase.req_id[behind:].any()


def _decodes(queries: list[int], known: str) -> dict[str, Any]:
    """Where the host knows how many decodes come first: those of one token."""
    return (
        {"num_decodes": 0 if queries[0] > 1 else queries.index(7) if 7 in queries else len(queries)} if known == "decodes" else {}
    )


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("kind", LAYERS)
def test_rows_of_padded_tokens_come_back_as_zeros(kind: str, known: str, is_seen: bool) -> None:
    engine = Engine(model(LAYERS[kind]), dtype="float64", num_blocks=BLOCKS)
    if LAYERS[kind].mla:
        bind(engine)
    for queries, lengths in STEPS.values():
        tables = take_away(make_tables(len(queries)), is_seen)
        batch = on_device(queries, lengths, tables, known, num_tokens=PADDED, **_decodes(queries, known))
        out = attend(engine, kind, engine.attention.build(batch))
        assert not out.isnan().any()
        assert not out[sum(queries) :].any()


def attend(engine: Engine, kind: str, metadata: hal.StepMetadata) -> torch.Tensor:
    """A call's answer in memory that held NaN."""
    count, layer = metadata.num_tokens_padded, LAYERS[kind]
    out = torch.full((count, layer.num_heads, layer.v_head_dim), torch.nan, dtype=torch.float64)
    if layer.mla is None:
        inputs = engine.random(count, 4, 8), engine.random(count, 2, 8), engine.random(count, 2, 6)
        return engine.attention.attend(0, *inputs, metadata, out=out)
    index = None
    if layer.indexer is not None:
        index = hal.IndexInputs(engine.random(count, 2, 4), engine.random(count, 4), engine.random(count, 2))
    queries = engine.random(count, 3, 6), engine.random(count, 3, 4)
    latents = engine.random(count, 12), engine.random(count, 4)
    return engine.attention.attend_mla(0, *queries, *latents, metadata, index=index, out=out)


@pytest.mark.parametrize("start", [0, 8], ids=["from_0", "from_8"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_of_padded_tokens_alone(kind: str, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an idle rank has it: no request, tokens that nobody sees. One that claims a first token is named when debugging."""
    engine = Engine(model(LAYERS[kind]), dtype="float64", num_blocks=BLOCKS)
    if LAYERS[kind].mla:
        bind(engine)
    engine.attention.build(hal.Batch([3], [9], make_tables(1)))
    before = snapshot(engine.attention)
    sizes = {"num_tokens": 5, "max_query_len": 1, "max_seq_len": 64}
    tensors = torch.tensor([start], dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0, 16, dtype=torch.int32)
    metadata = engine.attention.build(hal.Batch.from_device(*tensors, **sizes))
    assert set(metadata.slot_mapping.tolist()) == {-1}
    assert not metadata.positions.any()
    assert not attend(engine, kind, metadata).any()
    assert unchanged(engine.attention, before)
    assert engine.attention.lost_tokens == (5 if start else 0)
    monkeypatch.setenv("HAL_DEBUG", "1")
    if start:
        with pytest.raises(hal.BatchError, match=r"query_start_loc is \[8\]; expected \[0\]"):
            engine.attention.build(hal.Batch.from_device(*tensors, **sizes))
    else:
        engine.attention.build(hal.Batch.from_device(*tensors, **sizes))


STARTS = {
    "late": [2, 3, 8, 9],
    "at_the_end": [9, 9, 9, 9],
    "wild": [9, 2**31 - 1, -5, 3],
    "one_step_back": [0, 5, 3, 9],
    "past_the_tokens": [0, 1, 8, 12],
    "more_than_the_longest": [0, 0, 9, 9],
    "negative": [-3, 1, 8, 9],
}


@pytest.mark.parametrize("decodes", [None, 1], ids=["unsaid", "one_decode"])
@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("kind", ["gqa", "mla", "sparse"])
def test_starts_that_do_not_add_up_leave_every_token_to_nobody(kind: str, name: str, decodes: int | None) -> None:
    """Nobody can tell whose they are, so nothing is written, no row is left as it was, and all that was said to bound holds."""
    engine, _ = make_engine(kind)
    batch = engine.schedule([(0, 1), (1, 7), (2, 1)])
    table = np.ascontiguousarray(batch.block_tables[0])
    starts = torch.tensor(STARTS[name], dtype=torch.int32)
    changes = {"query_lens": None, "seq_lens_upper": None, "max_query_len": 7, "num_decodes": decodes}
    metadata = engine.attention.build(from_host(batch, table, query_start_loc=starts, **changes))
    before = snapshot(engine.attention)
    assert set(metadata.slot_mapping.tolist()) == {-1}
    assert engine.attention.lost_tokens == min(9, STARTS[name][-1])
    for phase in metadata.phases:
        for paged in phase.batches:
            assert paged.query_start_loc[0] == 0
            assert 0 <= paged.query_start_loc.diff().min() <= paged.query_start_loc.diff().max() <= paged.max_query_len
    assert not attend(engine, kind, metadata).any()
    assert unchanged(engine.attention, before)


@pytest.mark.parametrize("length", [3, 6, 19])
def test_a_request_longer_than_the_host_was_told_is_scored_as_far_as_it_was(length: int) -> None:
    engine, _ = make_engine("sparse")
    batch = engine.schedule([(0, 1), (1, 7), (2, 1)])
    table = np.ascontiguousarray(batch.block_tables[0])
    told = from_host(batch, table, seq_lens_upper=[length, max(7, length), min(7, length)])
    assert attend(engine, "sparse", engine.attention.build(told)).isfinite().all()
