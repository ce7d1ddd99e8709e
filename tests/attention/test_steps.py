"""Metadata belongs to one step of one Attention, and weights to a layer."""

from __future__ import annotations

import pytest

import hal

from .helpers.engine import Engine, snapshot, unchanged
from .helpers.gqa_run import run_layer, run_step
from .helpers.shapes import MLA_HEADS, gqa, mla, model, sparse


def test_metadata_of_an_earlier_step_is_refused_with_both_numbers() -> None:
    engine = Engine(model(gqa()))
    old = engine.attention.build(engine.schedule([(0, 3)]))
    engine.attention.build(engine.schedule([(0, 1)]))
    before = snapshot(engine.attention)
    with pytest.raises(hal.BatchError, match=rf"step {old.step_id} .*step {old.step_id + 1}"):
        engine.attention.attend(0, engine.random(3, 4, 8), engine.random(3, 2, 8), engine.random(3, 2, 6), old)
    assert unchanged(engine.attention, before)


def test_metadata_of_an_earlier_step_is_refused_by_mla_too() -> None:
    engine = Engine(model(mla()))
    old = engine.attention.build(engine.schedule([(0, 3)]))
    engine.attention.build(engine.schedule([(0, 1)]))
    q, rope = engine.random(3, MLA_HEADS, 12), engine.random(3, MLA_HEADS, 4)
    with pytest.raises(hal.BatchError, match=f"step {old.step_id} "):
        engine.attention.attend_mla(0, q, rope, engine.random(3, 12), engine.random(3, 4), old)


def test_metadata_of_another_attention_is_refused() -> None:
    """Its tables name pages of other caches."""
    one, two = Engine(model(gqa())), Engine(model(gqa()))
    run_step(two, [(0, 4)])
    foreign = one.attention.build(one.schedule([(0, 3)]))
    before = snapshot(two.attention)
    with pytest.raises(hal.BatchError):
        two.attention.attend(0, two.random(3, 4, 8), two.random(3, 2, 8), two.random(3, 2, 6), foreign)
    assert unchanged(two.attention, before)


def test_one_build_serves_every_layer_and_any_number_of_calls() -> None:
    engine = Engine(model(gqa(0), gqa(1)))
    step = [(0, 3), (1, 1)]
    metadata = engine.attention.build(engine.schedule(step))
    for layer in engine.shape.layers:
        run_layer(engine, layer, step, metadata)


class TestWeights:
    @pytest.mark.parametrize(
        ("name", "w_uk", "w_uv", "words"),
        [
            ("w_uk", (3, 6, 11), (3, 5, 12), ["[3, 6, 11]", "[3, 6, 12]"]),
            ("w_uk", (2, 6, 12), (3, 5, 12), ["[2, 6, 12]", "[3, 6, 12]"]),
            ("w_uv", (3, 6, 12), (3, 12, 5), ["[3, 12, 5]", "[3, 5, 12]"]),
        ],
        ids=["rank", "heads", "transposed"],
    )
    def test_weights_whose_shapes_do_not_fit_are_refused(self, name: str, w_uk, w_uv, words: list[str]) -> None:
        engine = Engine(model(mla()))
        with pytest.raises(hal.LayoutError, match=f"layer 0: {name}") as error:
            engine.attention.bind_weights(0, engine.random(*w_uk), engine.random(*w_uv))
        assert all(word in str(error.value) for word in words)

    def test_a_layer_without_latents_takes_none(self) -> None:
        engine = Engine(model(gqa()))
        with pytest.raises(hal.HalError, match="layer 0"):
            engine.attention.bind_weights(0, engine.random(3, 6, 12), engine.random(3, 5, 12))

    @pytest.mark.parametrize("layer", [mla(), sparse(owns=False)], ids=["dense", "sparse"])
    def test_queries_that_need_weights_say_how_to_bind_them(self, layer) -> None:
        engine = Engine(model(layer))
        metadata = engine.attention.build(engine.schedule([(0, 3)]))
        before = snapshot(engine.attention)
        inputs = engine.random(3, MLA_HEADS, 6), engine.random(3, MLA_HEADS, 4), engine.random(3, 12), engine.random(3, 4)
        with pytest.raises(hal.BackendError, match=r"bind_weights\(0"):
            engine.attention.attend_mla(0, *inputs, metadata)
        assert unchanged(engine.attention, before)

    def test_a_ranks_heads_are_expected_under_tensor_parallelism(self) -> None:
        engine = Engine(model(mla()), parallel=hal.Parallel(tp=3))
        engine.attention.bind_weights(0, engine.random(1, 6, 12), engine.random(1, 5, 12))
        with pytest.raises(hal.LayoutError):
            engine.attention.bind_weights(0, engine.random(3, 6, 12), engine.random(3, 5, 12))
