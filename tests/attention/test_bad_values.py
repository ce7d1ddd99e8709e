"""Values that only the kernels see, and steps of nothing: left out, counted, and an error where that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hal

from .helpers import oracle
from .helpers.engine import Engine, snapshot, unchanged
from .helpers.mla_run import bind, run_layer
from .helpers.shapes import INDEX_HEADS, INDEX_WIDTH, MLA_HEADS, gqa, mla, model, sparse

TOPK = 3
STEP = [(0, 1), (1, 7), (2, 2)]
PAST = [(0, 9), (1, 4)]


def sparse_engine() -> tuple[Engine, Any]:
    """Two requests with a past, which only their latents and index keys remember."""
    engine = Engine(model(sparse(topk=TOPK)), dtype="float64")
    (weights,) = bind(engine).values()
    metadata = engine.attention.build(engine.schedule(PAST))
    index = make_index(engine, metadata.num_tokens)
    choices = choose(engine, PAST, index)
    run_layer(engine, engine.shape.layers[0], weights, PAST, metadata, choices, index=index)
    return engine, weights


def make_index(engine: Engine, tokens: int) -> hal.IndexInputs:
    shapes = ((INDEX_HEADS, INDEX_WIDTH), (INDEX_WIDTH,), (INDEX_HEADS,))
    return hal.IndexInputs(*(engine.random(tokens, *shape) for shape in shapes))


def choose(engine: Engine, step: list[tuple[int, int]], index: hal.IndexInputs) -> list[list[int]]:
    """The definition's choice; a score that is NaN is no choice unless there are too few others."""
    engine.record((0, "index"), step, index.k)
    choices = []
    for token, (name, position) in enumerate(engine.tokens(step)):
        keys = engine.requests[name].history((0, "index"))[: position + 1]
        good = [key for key in range(len(keys)) if not keys[key].isnan().any()]
        best = [good[i] for i in oracle.best_keys(index.q[token], index.weights[token], keys[good], TOPK)]
        rest = [key for key in range(len(keys)) if key not in best]
        choices.append(best + rest[: max(0, TOPK - len(best))])
    return choices


def poisoned_index(engine: Engine) -> hal.IndexInputs:
    """Index inputs of STEP in which request 1's third new key, at position 6, is NaN: its tokens from there on score NaN."""
    index = make_index(engine, 10)
    index.k[3] = torch.nan
    return index


def test_a_nan_score_comes_last_and_is_counted() -> None:
    engine, weights = sparse_engine()
    metadata = engine.attention.build(engine.schedule(STEP))
    index = poisoned_index(engine)
    run_layer(engine, engine.shape.layers[0], weights, STEP, metadata, choose(engine, STEP, index), index=index)
    assert engine.attention.nan_scores == 5


def test_a_token_whose_every_score_is_nan_still_gets_keys_of_its_own() -> None:
    engine, _ = sparse_engine()
    metadata = engine.attention.build(engine.schedule([(0, 1)]))
    index = make_index(engine, 1)
    index.weights[0] = torch.nan
    engine.record((0, "index"), [(0, 1)], index.k)
    out = engine.attention.attend_mla(
        0,
        engine.random(1, MLA_HEADS, 6),
        engine.random(1, MLA_HEADS, 4),
        engine.random(1, 12),
        engine.random(1, 4),
        metadata,
        index=index,
    )
    assert out.isfinite().all()
    assert engine.attention.nan_scores == 1


def test_debugging_names_the_token_with_nan_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefills come before the decode here, so that execution takes another order than the engine's."""
    engine, weights = sparse_engine()
    step = [STEP[1], STEP[0], STEP[2]]
    metadata = engine.attention.build(engine.schedule(step))
    index = make_index(engine, 10)
    index.k[2] = torch.nan
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match="layer 0: the index scores of token 2 hold NaN"):
        run_layer(engine, engine.shape.layers[0], weights, step, metadata, choose(engine, step, index), index=index)


@pytest.mark.parametrize("past", [0, 1, 1000], ids=["the_next_position", "one_further", "far_away"])
def test_an_id_at_or_past_the_own_length_is_nobodys_and_is_counted(past: int) -> None:
    engine, weights = sparse_engine()
    metadata = engine.attention.build(engine.schedule(STEP))
    tokens = engine.tokens(STEP)
    rows = torch.tensor([[0, position + 1 + past, -1] for _, position in tokens], dtype=torch.int32)
    run_layer(engine, engine.shape.layers[0], weights, STEP, metadata, [[0]] * len(tokens), topk=rows)
    assert engine.attention.lost_choices == len(tokens)


def test_debugging_names_the_id_and_what_its_token_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, weights = sparse_engine()
    metadata = engine.attention.build(engine.schedule(STEP))
    rows = torch.full((10, TOPK), -1, dtype=torch.int32)
    rows[4, 1] = 44
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match="layer 0: token 4 is to attend to key 44; it sees keys 0 to 7"):
        run_layer(engine, engine.shape.layers[0], weights, STEP, metadata, [[]] * 10, topk=rows)


LAYERS = (gqa(0), gqa(1, window=3, sink=True), mla(2), sparse(3, topk=TOPK))
NOTHING: dict[str, dict[str, Any]] = {
    "no_request": {"query_lens": [], "seq_lens": []},
    "no_new_token": {"query_lens": [0, 0], "seq_lens": [5, 0]},
    "padding_alone": {"query_lens": [], "seq_lens": [], "num_tokens_padded": 3, "num_reqs_padded": 2},
}


@pytest.mark.parametrize("form", ["host", "device"])
@pytest.mark.parametrize("name", NOTHING)
def test_a_step_of_nothing_gives_zeros_and_writes_nothing(name: str, form: str) -> None:
    engine = Engine(model(*LAYERS), dtype="float64")
    bind_all(engine)
    before = snapshot(engine.attention)
    metadata = engine.attention.build(make_batch(form, **NOTHING[name]))
    count = metadata.num_tokens_padded
    assert metadata.decode is None or form == "device"
    for layer in LAYERS:
        out = attend(engine, layer, count, metadata)
        assert tuple(out.shape) == (count, layer.num_heads, layer.v_head_dim)
        assert not out.any()
    assert unchanged(engine.attention, before)
    assert (metadata.slot_mapping == -1).all()
    assert engine.attention.lost_tokens == engine.attention.lost_pages == 0
    assert engine.attention.nan_scores == engine.attention.lost_choices == 0


def bind_all(engine: Engine) -> None:
    for layer in LAYERS:
        if layer.mla is not None:
            engine.attention.bind_weights(layer.layer_id, engine.random(MLA_HEADS, 6, 12), engine.random(MLA_HEADS, 5, 12))


def make_batch(form: str, query_lens: list[int], seq_lens: list[int], **padding: int) -> Any:
    tables = torch.zeros(len(query_lens), 4, dtype=torch.int32)
    if form == "host":
        return hal.Batch(query_lens, seq_lens, tables.numpy(), **padding)
    extra = padding.get("num_reqs_padded", len(query_lens)) - len(query_lens)
    return hal.Batch.from_device(
        torch.zeros(len(query_lens) + extra + 1, dtype=torch.int32),
        torch.tensor(seq_lens + [0] * extra, dtype=torch.int32),
        torch.cat([tables, torch.zeros(extra, 4, dtype=torch.int32)]),
        num_tokens=padding.get("num_tokens_padded", 0),
        max_query_len=0,
        max_seq_len=max(seq_lens, default=0),
    )


def attend(engine: Engine, layer: hal.config.LayerShape, count: int, metadata: hal.StepMetadata) -> torch.Tensor:
    sink = engine.random(layer.num_heads) if layer.sink else None
    if layer.mla is None:
        inputs = engine.random(count, 4, 8), engine.random(count, 2, 8), engine.random(count, 2, 6)
        return engine.attention.attend(layer.layer_id, *inputs, metadata, sink=sink)
    index = make_index(engine, count) if layer.indexer is not None else None
    inputs = (
        engine.random(count, MLA_HEADS, 6),
        engine.random(count, MLA_HEADS, 4),
        engine.random(count, 12),
        engine.random(count, 4),
    )
    return engine.attention.attend_mla(layer.layer_id, *inputs, metadata, index=index, sink=sink)
