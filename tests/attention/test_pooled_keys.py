"""attend_mla with index keys that tokens share: pools are scored, whole pools and the open tail are attended to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

import hal
from hal.common.backends.registry import find_backend
from hal.common.contract.backend import Backend
from hal.common.running.layer_kernels import LayerKernels
from hal.config import LayerShape

from .helpers import oracle
from .helpers.compressed_run import entries, make_compressor
from .helpers.engine import Engine, Step
from .helpers.histories import BOUNDED, HISTORIES
from .helpers.mla_run import Weights, bind, run_layer
from .helpers.shapes import INDEX_HEADS, INDEX_WIDTH, model, sparse

POOL = 4
LIMITS = hal.Limits(96, 6, 64, block_size=8)


def pooled(layer_id: int, topk: int = 8, owns: bool = True) -> LayerShape:
    """An MLA layer that attends to the best topk / 4 pools of 4 tokens."""
    layer = sparse(layer_id, topk=topk, owns=owns)
    return replace(layer, indexer=replace(layer.indexer, pool=POOL))


LAYERS = (pooled(0), pooled(1, owns=False), pooled(2, topk=4))


def make_engine(**plan) -> tuple[Engine, dict[int, Weights]]:
    engine = Engine(model(*LAYERS), dtype=plan.pop("dtype", "float64"), limits=LIMITS, **plan)
    return engine, bind(engine)


def run_step(engine: Engine, weights: dict[int, Weights], step: Step, *, is_ready: bool = False, **batch) -> None:
    """Attend in every layer and hold each output against the definition; is_ready: bring keys that are pooled already."""
    metadata = engine.attention.build(engine.schedule(step, **batch))
    choices: list[list[int]] = []
    for layer in engine.shape.layers:
        index = None
        if layer.indexer.owns:
            index, choices = make_index(engine, layer, step, is_ready)
        run_layer(engine, layer, weights[layer.layer_id], step, metadata, choices, index=index)


def make_index(engine: Engine, layer: LayerShape, step: Step, is_ready: bool) -> tuple[hal.IndexInputs, list[list[int]]]:
    """Random index inputs, and the tokens of each query's best pools with its open tail."""
    tokens = engine.tokens(step)
    key = (layer.layer_id, 3)
    compressor = make_compressor(engine, key, step, ratio=POOL, groups=1, width=INDEX_WIDTH, is_rotated=False)
    compressor = replace(compressor, norm_weight=None)
    q, scores = engine.random(len(tokens), INDEX_HEADS, INDEX_WIDTH), engine.random(len(tokens), INDEX_HEADS)
    ready, choices = torch.full((len(tokens), INDEX_WIDTH), torch.nan, dtype=engine.dtype), []
    for token, (name, position) in enumerate(tokens):
        pools = (position + 1) // POOL
        keys = entries(engine, name, key, compressor, pools, groups=1)
        if (position + 1) % POOL == 0:
            ready[token] = keys[-1].to(engine.dtype)
        best = oracle.best_keys(q[token], scores[token], keys, layer.indexer.topk // POOL)
        history = [pool * POOL + offset for pool in best for offset in range(POOL)]
        choices.append([*history, *range(pools * POOL, position + 1)])
        expected = position + 1 if position < layer.indexer.topk else layer.indexer.topk + (position + 1) % POOL
        assert len(choices[-1]) == expected
    return hal.IndexInputs(q, ready if is_ready else compressor, scores), choices


@pytest.mark.parametrize("num_spec_tokens", [0, 3], ids=["plain", "spec"])
@settings(BOUNDED, max_examples=15)
@given(history=HISTORIES)
def test_attention_over_pooled_keys_is_its_definition_after_any_history(num_spec_tokens: int, history) -> None:
    engine, weights = make_engine(num_spec_tokens=num_spec_tokens)
    for step, leaving in history:
        run_step(engine, weights, step)
        engine.finish(leaving)


STEPS = [((0, 17), (1, 3)), ((1, 1), (0, 1)), ((0, 1), (1, 30)), ((2, 9), (0, 2), (1, 1)), ((0, 1), (1, 1), (2, 1))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_over_pooled_keys_is_its_definition_in_every_type(dtype: str) -> None:
    engine, weights = make_engine(dtype=dtype)
    for step in STEPS:
        run_step(engine, weights, step)


def test_keys_that_are_pooled_already_are_taken_as_they_are() -> None:
    """Rows of tokens that close no pool are not read: they hold NaN here."""
    engine, weights = make_engine()
    for step in STEPS:
        run_step(engine, weights, step, is_ready=True)


@pytest.mark.parametrize("form", ["absorbed", "decompressed"])
def test_attention_over_pooled_keys_is_its_definition_in_both_forms(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hal.common.stepping.runs.choose_form", lambda *_: form)
    engine, weights = make_engine()
    for step in STEPS:
        run_step(engine, weights, step)


def test_a_compressor_where_every_token_has_a_key_is_refused() -> None:
    engine = Engine(model(sparse(0, topk=8)))
    bind(engine)
    step = ((0, 3),)
    metadata = engine.attention.build(engine.schedule(step))
    compressor = make_compressor(engine, (0, 3), step, ratio=1, groups=1, width=INDEX_WIDTH, is_rotated=False)
    index = hal.IndexInputs(engine.random(3, INDEX_HEADS, INDEX_WIDTH), compressor, engine.random(3, INDEX_HEADS))
    inputs = (engine.random(3, 3, 6), engine.random(3, 3, 4), engine.random(3, 12), engine.random(3, 4))
    with pytest.raises(hal.BatchError, match="layer 0 keeps an index key per token"):
        engine.attention.attend_mla(0, *inputs, metadata, index=index)


def test_a_backend_without_compression_takes_pooled_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no backend compresses states the plan keeps none, and a compressor is refused by its own name."""
    for cls in find_backend("cuda:triton").__mro__:
        if "compress_states" in vars(cls):
            monkeypatch.setattr(cls, "compress_states", Backend.compress_states)
    plan = hal.plan(model(*LAYERS), "cuda:sm_90", limits=replace(LIMITS, block_size=16), dtype="bfloat16")
    assert {group.part for group in plan.groups} == {"kv", "index"}
    assert "compress_states" not in plan.selections[0].providers
    kernels = LayerKernels(plan.selections[0].providers, dict.fromkeys(plan.selections[0].providers.values(), Backend))
    engine, _ = make_engine()
    engine.schedule(((0, 3),))
    index, _ = make_index(engine, LAYERS[0], ((0, 3),), is_ready=False)
    layer = engine.attention._layers[0]
    owner = replace(layer.index, bound=replace(layer.way.bound, kernels=kernels))
    with pytest.raises(hal.NotBuiltError, match="pooled already"):
        owner.check(index, owner.bound.expect(3))
