"""Keys chosen elsewhere, absorbed queries, and indexers that several layers share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hal
from hal.common.stepping import runs as mla_runs

from .helpers.engine import Engine
from .helpers.histories import BOUNDED, HISTORIES
from .helpers.mla_run import bind, draw_choice, draw_index, run_layer, run_step
from .helpers.shapes import INDEX_HEADS, INDEX_WIDTH, MLA_HEADS, mla, model, sparse

PATCHED = settings(BOUNDED, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCRIPT = [[(0, 5), (1, 9)], [(1, 1), (0, 1), (2, 6)], [(3, 7), (0, 1), (1, 1), (2, 8)]]


@pytest.fixture(params=["absorbed", "decompressed"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each form of MLA in turn."""
    monkeypatch.setattr(mla_runs, "choose_form", lambda *_: request.param)
    return request.param


@PATCHED
@given(history=HISTORIES, topk=st.integers(1, 8), owns=st.booleans())
def test_a_choice_that_is_handed_over_is_the_only_one(history, topk: int, owns: bool, form: str) -> None:
    """Also where it leaves out keys of a request shorter than topk, and where it is empty: then the result is zero."""
    engine = Engine(model(sparse(topk=topk, owns=owns)), dtype="float64")
    (weights,) = bind(engine).values()
    for step, leaver in history:
        metadata = engine.attention.build(engine.schedule(step))
        rows, choices = draw_choice(engine, step, topk)
        run_layer(engine, engine.shape.layers[0], weights, step, metadata, choices, topk=rows)
        if leaver is not None:
            engine.finish(leaver)


@PATCHED
@given(history=HISTORIES, topk=st.integers(2, 8), seed=st.integers(0, 2**31))
def test_an_id_that_is_handed_over_twice_counts_once(history, topk: int, seed: int, form: str) -> None:
    """As libraries pad a short choice, whole prefills and single tokens alike; an id that is none stays none."""
    engine = Engine(model(sparse(0, topk=topk), sparse(1, topk=topk, owns=False)), dtype="float64")
    weights, shuffle = bind(engine), torch.Generator().manual_seed(seed)
    for step, leaver in history:
        metadata = engine.attention.build(engine.schedule(step))
        rows, choices = draw_choice(engine, step, topk)
        cells = torch.randint(topk, rows.shape, generator=shuffle)
        repeated = torch.where(rows < 0, rows.gather(1, cells), rows)
        for layer, handed in zip(engine.shape.layers, (repeated, None), strict=True):
            run_layer(engine, layer, weights[layer.layer_id], step, metadata, choices, topk=handed)
        if leaver is not None:
            engine.finish(leaver)
    assert engine.attention.lost_choices == 0


def test_a_choice_that_is_handed_over_stays_so_whatever_layers_of_another_width_choose(form: str) -> None:
    """An id left out of a request shorter than topk stays out on the layer that shares the choice; and the other way round."""
    for explicit in (0, 1):
        engine = Engine(model(sparse(0, topk=7), sparse(1, topk=5), sparse(2, topk=7, owns=False)), dtype="float64")
        weights, choices = bind(engine), {}
        for step in SCRIPT:
            metadata = engine.attention.build(engine.schedule(step))
            for layer in engine.shape.layers:
                arguments: dict[str, Any] = {}
                if layer.layer_id == explicit:
                    arguments["topk"], choices[layer.indexer.topk] = draw_choice(engine, step, layer.indexer.topk)
                elif layer.indexer.owns:
                    arguments["index"], choices[layer.indexer.topk] = draw_index(engine, layer, step)
                run_layer(engine, layer, weights[layer.layer_id], step, metadata, choices[layer.indexer.topk], **arguments)


def test_a_choice_beats_the_layers_own_indexer_and_its_keys_are_still_cached() -> None:
    engine = Engine(model(sparse(topk=3)), dtype="float64")
    (weights,) = bind(engine).values()
    layer = engine.shape.layers[0]
    step = [(0, 6)]
    metadata = engine.attention.build(engine.schedule(step))
    rows, choices = draw_choice(engine, step, 3)
    run_layer(engine, layer, weights, step, metadata, choices, topk=rows, index=_index(engine, 6))
    cached = engine.attention.caches[(0, "index")].storage[engine.requests[0].pages].flatten(0, 1)[:6]
    assert cached.abs().sum() > 0


@pytest.mark.parametrize("sparse_layer", [False, True], ids=["dense", "sparse"])
def test_absorbed_queries_get_latents_back(sparse_layer: bool) -> None:
    layer = sparse(topk=64) if sparse_layer else mla()
    engine = Engine(model(layer), dtype="float64")
    (weights,) = bind(engine).values()
    for step in SCRIPT:
        metadata = engine.attention.build(engine.schedule(step))
        extra: dict[str, Any] = {"index": _index(engine, metadata.num_tokens)} if sparse_layer else {}
        out = run_layer(engine, layer, weights, step, metadata, None, absorb=True, **extra)
        assert out.shape == (metadata.num_tokens, MLA_HEADS, 12)


def test_absorbed_queries_need_no_up_projections() -> None:
    engine = Engine(model(mla()), dtype="float64")
    (weights,) = bind(Engine(model(mla()), dtype="float64")).values()
    step = [(0, 5), (1, 1)]
    run_layer(engine, engine.shape.layers[0], weights, step, engine.attention.build(engine.schedule(step)), None, absorb=True)


def test_a_sharing_layer_follows_the_latest_owner_of_its_step() -> None:
    layers = sparse(0, topk=3), sparse(1, topk=3, owns=False), sparse(2, topk=3), sparse(3, topk=3, owns=False)
    engine = Engine(model(*layers), dtype="float64")
    weights = bind(engine)
    for step in SCRIPT:
        run_step(engine, weights, step)


def test_a_sharing_layer_before_any_owner_of_the_step_is_refused() -> None:
    """The choice of the step before is still in the buffer and must not be taken."""
    engine = Engine(model(sparse(0, topk=3), sparse(1, topk=3, owns=False)), dtype="float64")
    weights = bind(engine)
    run_step(engine, weights, [(0, 6)])
    step = [(0, 1)]
    metadata = engine.attention.build(engine.schedule(step))
    with pytest.raises(hal.BatchError, match="layer 1 shares"):
        run_layer(engine, engine.shape.layers[1], weights[1], step, metadata, None)


def test_equal_scores_go_to_earlier_keys() -> None:
    engine = Engine(model(sparse(topk=3)), dtype="float64")
    (weights,) = bind(engine).values()
    step = [(0, 9)]
    metadata = engine.attention.build(engine.schedule(step))
    ones = hal.IndexInputs(torch.ones(9, 2, 4).double(), torch.ones(9, 4).double(), torch.ones(9, 2).double())
    run_layer(engine, engine.shape.layers[0], weights, step, metadata, [[0, 1, 2]] * 9, index=ones)


def _index(engine: Engine, tokens: int) -> hal.IndexInputs:
    return hal.IndexInputs(
        engine.random(tokens, INDEX_HEADS, INDEX_WIDTH), engine.random(tokens, INDEX_WIDTH), engine.random(tokens, INDEX_HEADS)
    )
