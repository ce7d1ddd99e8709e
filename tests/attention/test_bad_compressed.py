"""Tensors and calls that do not fit a compressed layer: a typed error with the figures, and no cache written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import hal

from .helpers import compressed_run as run
from .helpers.engine import Engine, snapshot, unchanged
from .helpers.shapes import gqa, model

STEP = ((0, 2), (1, 1))
LAYERS = (*run.layers(), gqa(6))


@pytest.fixture
def engine() -> Engine:
    return Engine(model(*LAYERS), limits=hal.Limits(96, 6, 64, block_size=8))


def change(**arguments: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Arguments with some of them put through a function."""
    return lambda good: {name: make(good[name]) for name, make in arguments.items()}


def compressor(field: str, make: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The layer's compressor with one field put through a function."""
    return change(compressor=lambda given: replace(given, **{field: make(getattr(given, field))}))


def move(given: hal.Compressor, device: str) -> hal.Compressor:
    """A compressor all of whose tensors lie elsewhere."""
    tensors = {field.name: getattr(given, field.name) for field in fields(given)}
    return replace(given, **{name: each.to(device) for name, each in tensors.items() if isinstance(each, torch.Tensor)})


def index(**inputs: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Index inputs with some of them put through a function."""
    return change(index=lambda given: given._replace(**{name: make(getattr(given, name)) for name, make in inputs.items()}))


CASES: dict[str, tuple[int, Callable[[dict[str, Any]], dict[str, Any]], list[str]]] = {
    "q_width": (0, change(q=lambda q: q[..., 1:]), ["layer 0", "q", "[3, 3, 7]", "[3, 3, 8]"]),
    "q_heads": (0, change(q=lambda q: q[:, 1:]), ["q", "[3, 2, 8]"]),
    "q_tokens": (0, change(q=lambda q: q[1:]), ["q", "[2, 3, 8]"]),
    "q_dtype": (0, change(q=lambda q: q.double()), ["q", "float64", "float32"]),
    "q_device": (0, change(q=lambda q: q.to("meta")), ["q", "meta", "cpu"]),
    "kv_width": (0, change(kv=lambda kv: kv[:, 1:]), ["kv", "[3, 7]", "[3, 8]"]),
    "kv_dtype": (0, change(kv=lambda kv: kv.int()), ["kv", "int32", "float32"]),
    "no_kv": (0, change(kv=lambda _: None), ["layer 0", "kv"]),
    "no_sink": (0, change(sink=lambda _: None), ["layer 0", "sink"]),
    "sink_heads": (0, change(sink=lambda sink: sink[1:]), ["sink", "[2]", "[3]"]),
    "unwanted_sink": (4, change(sink=lambda _: torch.zeros(3)), ["layer 4", "sink"]),
    "out_shape": (0, lambda _: {"out": torch.empty(3, 3, 7)}, ["out", "[3, 3, 7]"]),
    "no_compressor": (1, change(compressor=lambda _: None), ["layer 1", "4 tokens", "compressor"]),
    "compressor_of_a_window": (0, lambda good: {"compressor": good["spare"]}, ["layer 0", "window alone"]),
    "compressor_of_a_reader": (3, lambda good: {"compressor": good["spare"]}, ["layer 3", "entries of layer 1"]),
    "compressor_kv": (1, compressor("kv", lambda t: t[:, 1:]), ["layer 1", "compressor.kv", "[3, 15]", "[3, 16]"]),
    "compressor_tokens": (2, compressor("score", lambda t: t[1:]), ["compressor.score", "[2, 8]", "[3, 8]"]),
    "compressor_overlap": (2, lambda good: {"compressor": good["spare"]}, ["compressor.kv", "[3, 16]", "[3, 8]"]),
    "compressor_bias": (2, compressor("position_bias", lambda t: t[1:]), ["compressor.position_bias", "[7, 8]", "[8, 8]"]),
    "compressor_norm": (2, compressor("norm_weight", lambda t: t[1:]), ["compressor.norm_weight", "[7]", "[8]"]),
    "compressor_dtype": (2, compressor("score", lambda t: t.int()), ["compressor.score", "int32", "floating"]),
    "compressor_device": (2, compressor("score", lambda t: t.to("meta")), ["compressor.score", "meta", "cpu"]),
    "compressor_elsewhere": (1, lambda good: {"compressor": move(good["compressor"], "meta")}, ["compressor.kv", "meta", "cpu"]),
    "compressor_missing_kv": (1, compressor("kv", lambda _: None), ["compressor.kv", "NoneType", "[3, 16]"]),
    "compressor_of_lists": (2, compressor("score", lambda t: t.tolist()), ["compressor.score", "list", "[3, 8]"]),
    "compressor_cos_of_no_dimension": (2, compressor("cos", lambda _: torch.tensor(1.0)), ["rotates 0 lanes", "4"]),
    "compressor_eps": (2, lambda good: {"compressor": replace(good["compressor"], eps=None)}, ["compressor.eps", "None"]),
    "compressor_of_another_type": (1, change(compressor=lambda given: {"kv": given.kv}), ["layer 1", "dict", "Compressor"]),
    "compressor_rope": (2, compressor("cos", lambda t: t[:, 1:]), ["rotates 2 lanes", "4"]),
    "compressor_sin_alone": (2, compressor("cos", lambda _: None), ["cos and sin"]),
    "no_index": (1, change(index=lambda _: None), ["layer 1", "index"]),
    "index_of_a_window": (0, lambda good: {"index": good["spare_index"]}, ["layer 0", "index"]),
    "index_of_a_reader": (3, lambda good: {"index": good["spare_index"]}, ["layer 3", "index"]),
    "index_q": (1, index(q=lambda q: q[:, 1:]), ["index.q", "[3, 1, 6]", "[3, 2, 6]"]),
    "index_weights": (1, index(weights=lambda w: w[:, 1:]), ["index.weights", "[3, 1]", "[3, 2]"]),
    "index_keys": (1, index(k=lambda _: torch.zeros(3, 5)), ["index.k", "[3, 5]", "[3, 6]"]),
    "index_compressor": (1, index(k=lambda k: replace(k, kv=k.kv[:, 1:])), ["index.k.kv", "[3, 11]", "[3, 12]"]),
    "index_compressor_elsewhere": (1, index(k=lambda k: move(k, "meta")), ["index.k.kv", "meta", "cpu"]),
    "no_choice_yet": (3, lambda _: {}, ["layer 3", "chosen"]),
}


def good(engine: Engine, layer_id: int) -> dict[str, Any]:
    """Arguments that fit, and a compressor and index inputs of layer 1 to spare."""
    arguments = run.layer_inputs(engine, LAYERS[layer_id], STEP)
    spare = run.layer_inputs(engine, LAYERS[1], STEP)
    return arguments | {"spare": spare["compressor"], "spare_index": spare["index"]}


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_a_compressed_layer_is_refused_before_any_write(engine: Engine, name: str) -> None:
    layer_id, make, words = CASES[name]
    metadata = engine.attention.build(engine.schedule(STEP))
    arguments = good(engine, layer_id)
    arguments |= make(arguments)
    del arguments["spare"], arguments["spare_index"]
    before = snapshot(engine.attention)
    with pytest.raises((hal.LayoutError, hal.BatchError)) as error:
        engine.attention.attend_compressed(layer_id, metadata=metadata, **arguments)
    assert [word for word in words if word not in str(error.value)] == []
    assert unchanged(engine.attention, before)


@pytest.mark.parametrize("layer_id", range(6))
def test_what_fits_a_compressed_layer_is_served(engine: Engine, layer_id: int) -> None:
    """Otherwise the arguments above might be refused for another reason."""
    metadata = engine.attention.build(engine.schedule(STEP))
    for one in ([1] if layer_id == 3 else []) + [layer_id]:
        arguments = run.layer_inputs(engine, LAYERS[one], STEP)
        out = engine.attention.attend_compressed(one, metadata=metadata, **arguments)
        assert out.isfinite().all()


def test_a_layer_of_another_kind_is_refused(engine: Engine) -> None:
    metadata = engine.attention.build(engine.schedule(STEP))
    arguments = run.layer_inputs(engine, LAYERS[0], STEP)
    with pytest.raises(hal.BatchError, match="layer 6"):
        engine.attention.attend_compressed(6, metadata=metadata, **arguments)
    with pytest.raises(hal.BatchError, match="layer 0"):
        engine.attention.attend(0, arguments["q"], None, None, metadata)
