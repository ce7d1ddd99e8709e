"""Engines that know layers, not configs: any ids, and the same results as a model read from a config gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import hal
from hal.config import LayerShape, ModelShape

from .helpers.engine import Engine
from .helpers.shapes import gqa, mla, model, sparse

STEPS = ([(0, 9), (1, 3)], [(0, 1), (1, 1)], [(1, 5), (0, 1)])
SHIFTED = {0: 16, 1: 17, 2: 40}


def shift(layer: LayerShape) -> LayerShape:
    return replace(layer, layer_id=SHIFTED[layer.layer_id], kv_source=SHIFTED[layer.kv_source])


def run(engine: Engine, call: str, ids: list[int], inputs: list[list[dict[str, Any]]]) -> list[torch.Tensor]:
    outs = []
    for step, layers in zip(STEPS, inputs, strict=True):
        metadata = engine.attention.build(engine.schedule(step))
        outs += [getattr(engine.attention, call)(i, metadata=metadata, **each) for i, each in zip(ids, layers, strict=True)]
    return outs


def draw_dense(layer: LayerShape, tokens: int) -> dict[str, Any]:
    k, v = (torch.randn(tokens, 2, width) for width in (8, 6))
    return {"q": torch.randn(tokens, 4, 8), "k": k if layer.owns_kv else None, "v": v if layer.owns_kv else None}


def draw_latent(layer: LayerShape, tokens: int) -> dict[str, Any]:
    index = hal.IndexInputs(torch.randn(tokens, 2, 4), torch.randn(tokens, 4), torch.randn(tokens, 2))
    own = layer.indexer is not None and layer.indexer.owns
    shapes = {"q_nope": (3, 12), "q_rope": (3, 4), "latent": (12,), "k_rope": (4,)}
    return {name: torch.randn(tokens, *shape) for name, shape in shapes.items()} | {"index": index if own else None}


@pytest.mark.parametrize(
    ("call", "draw", "layers"),
    [
        ("attend", draw_dense, (gqa(0), gqa(1, window=5), gqa(2, kv_source=0))),
        ("attend_mla", draw_latent, (sparse(0), sparse(1, owns=False), mla(2))),
    ],
    ids=["dense", "latent"],
)
def test_ids_of_the_engine_s_change_nothing(
    call: str, draw: Callable[[LayerShape, int], dict[str, Any]], layers: tuple[LayerShape, ...]
) -> None:
    torch.manual_seed(0)
    inputs = [[draw(layer, sum(new for _, new in step)) for layer in layers] for step in STEPS]
    shape = ModelShape.from_layers(map(shift, layers), torch.float32, max_position_embeddings=4096)
    assert [shape.layer(i).layer_id for i in SHIFTED.values()] == [16, 17, 40]
    found = run(Engine(shape), call, list(SHIFTED.values()), inputs)
    expected = run(Engine(model(*layers)), call, list(SHIFTED), inputs)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("layer_id", [0, 18, 39, -1])
def test_an_id_of_none_of_them_is_told_with_those_there_are(layer_id: int) -> None:
    shape = ModelShape.from_layers([gqa(16), gqa(17), gqa(40)], "float32")
    with pytest.raises(IndexError, match=rf"layer {layer_id} is not in this model: ids 16-17, 40"):
        shape.layer(layer_id)


REFUSED: dict[str, tuple[Any, str]] = {
    "one_layer": (gqa(3), "layers is a LayerShape"),
    "none": ([], "at least one LayerShape"),
    "no_layer": ([{"layer_id": 0}], "a layer is a dict"),
    "twice": ([gqa(3), gqa(4), gqa(3)], "the ids 3 more than once"),
    "negative": ([replace(gqa(3), layer_id=-1)], "the id -1"),
    "a_source_elsewhere": ([gqa(3), gqa(4, kv_source=2)], "kv_source 2, which is not among"),
    "a_source_after_it": ([gqa(3, kv_source=4), gqa(4)], "kv_source 4, which is not among the layers up to it"),
    "an_indexer_of_nobody": ([sparse(3, owns=False), sparse(4)], "layer 3 shares an indexer, and no layer before it owns one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_do_not_go_together_are_refused(name: str) -> None:
    layers, words = REFUSED[name]
    with pytest.raises(hal.HalError, match=words) as error:
        ModelShape.from_layers(layers, "float32")
    assert isinstance(error.value, ValueError)


def test_a_dtype_that_no_model_computes_in_is_refused() -> None:
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        ModelShape.from_layers([gqa(0)], "float8_e4m3fn")
    assert ModelShape.from_layers([gqa(0)], None).dtype is None


@pytest.mark.parametrize("length", [0, -3, 1.5])
def test_a_length_that_no_model_has_is_refused(length: Any) -> None:
    with pytest.raises(ValueError, match=f"max_position_embeddings is {length}"):
        ModelShape.from_layers([gqa(0)], None, max_position_embeddings=length)


def test_what_an_engine_does_not_give_is_not_shown() -> None:
    shown = str(ModelShape.from_layers([gqa(7)], "float32", model_type="mine"))
    assert "mine" in shown
    assert "hidden" not in shown
    assert "vocabulary" not in shown
