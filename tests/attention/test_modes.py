"""Gradients and inference mode, whatever an engine has them set to: the same results, and caches that stay plain tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import hal
from hal.common.contract.layouts import attention_layout
from hal.testing import ReferenceBackend

from .helpers.compressed_run import layer_inputs, layers
from .helpers.engine import Engine
from .helpers.shapes import gqa, mla, model, sparse

LAYERS = (gqa(0), gqa(1, sink=True), mla(2), sparse(3, topk=4))
STEPS = [[(0, 7), (1, 3)], [(0, 1), (1, 2)], [(0, 1), (1, 1)]]
MODES: dict[str, Callable[[], Any]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def run(opened: str, stepped: str, *, requires_grad: bool = False) -> tuple[Engine, list[torch.Tensor]]:
    """Opened in one mode, stepped in another; every output."""
    with MODES[opened]():
        engine = Engine(model(*LAYERS))
        for layer in LAYERS:
            if layer.mla is not None:
                engine.attention.bind_weights(layer.layer_id, engine.random(3, 6, 12), engine.random(3, 5, 12))
    with MODES[stepped]():
        return engine, [out for step in STEPS for out in attend(engine, engine.schedule(step), requires_grad)]


def attend(engine: Engine, batch: hal.Batch, requires_grad: bool) -> list[torch.Tensor]:
    metadata = engine.attention.build(batch)
    tokens = metadata.num_tokens

    def make(*shape: int) -> torch.Tensor:
        return engine.random(tokens, *shape).requires_grad_(requires_grad)

    outs = []
    for layer in LAYERS:
        if layer.mla is None:
            sink = torch.zeros(4, requires_grad=requires_grad) if layer.sink else None
            outs.append(engine.attention.attend(layer.layer_id, make(4, 8), make(2, 8), make(2, 6), metadata, sink=sink))
        else:
            index = hal.IndexInputs(make(2, 4), make(4), make(2)) if layer.indexer is not None else None
            inputs = make(3, 6), make(3, 4), make(12), make(4)
            outs.append(engine.attention.attend_mla(layer.layer_id, *inputs, metadata, index=index))
    return outs


@pytest.mark.parametrize("stepped", MODES)
@pytest.mark.parametrize("opened", MODES)
def test_gradient_and_inference_modes_change_no_result(opened: str, stepped: str) -> None:
    _, expected = run("no_grad", "no_grad")
    _, outs = run(opened, stepped)
    assert all(torch.equal(out, other) for out, other in zip(outs, expected, strict=True))


@pytest.mark.parametrize("stepped", ["plain", "no_grad"])
def test_inputs_that_require_gradients_give_none_and_tie_no_cache_to_them(stepped: str) -> None:
    _, expected = run("plain", "no_grad")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        engine, outs = run("plain", stepped, requires_grad=True)
    told = [str(each.message) for each in caught if "requires a gradient" in str(each.message)]
    # Once for each line that calls, however often it does.
    assert len(told) == (2 if stepped == "plain" else 0)
    assert all("is detached" in each for each in told)
    assert all(torch.equal(out, other) for out, other in zip(outs, expected, strict=True))
    assert not any(out.requires_grad for out in outs)
    assert not any(cache.storage.requires_grad for cache in engine.attention.caches.values())


@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_one_input_that_requires_a_gradient_is_enough_to_be_told_of_it(name: str) -> None:
    engine = Engine(model(gqa(0, sink=True)))
    metadata = engine.attention.build(engine.schedule([(0, 3)]))
    shapes = {"q": (3, 4, 8), "k": (3, 2, 8), "v": (3, 2, 6), "sink": (4,)}
    inputs = {each: engine.random(*shape).requires_grad_(each == name) for each, shape in shapes.items()}
    with pytest.warns(UserWarning, match="an input of attend requires a gradient"):
        out = engine.attention.attend(0, metadata=metadata, **inputs)
    assert not out.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.attention.attend(0, metadata=metadata, **{each: tensor.detach() for each, tensor in inputs.items()})


def test_a_compressor_that_requires_a_gradient_is_told_of_too() -> None:
    engine = Engine(model(*layers()), block_size=8)
    metadata = engine.attention.build(engine.schedule([(0, 9)]))
    inputs = layer_inputs(engine, engine.shape.layers[2], [(0, 9)])
    inputs["compressor"] = replace(inputs["compressor"], norm_weight=inputs["compressor"].norm_weight.requires_grad_())
    with pytest.warns(UserWarning, match="an input of attend_compressed requires a gradient"):
        engine.attention.attend_compressed(2, metadata=metadata, **inputs)


KERNELS: dict[str, tuple[str, Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "write_cache": ("write_cache", lambda: (make_cache(), torch.arange(2), tracked(2, 2, 8), torch.zeros(2, 2, 8)), {}),
    "paged_attention": ("paged_attention", lambda: (tracked(2, 4, 8), make_cache(), one_request()), {"softmax_scale": 1.0}),
    "a_cache": ("paged_attention", lambda: (torch.zeros(2, 4, 8), make_cache(True), one_request()), {"softmax_scale": 1.0}),
    "varlen_attention": (
        "varlen_attention",
        lambda: (torch.zeros(2, 4, 8), torch.zeros(2, 2, 8), tracked(2, 2, 8), one_list()),
        {"softmax_scale": 1.0},
    ),
    "merge_states": ("merge_states", lambda: (torch.zeros(2, 4, 8), tracked(2, 4), torch.zeros(2, 4, 8), torch.zeros(2, 4)), {}),
    "apply_sink": ("apply_sink", lambda: (torch.zeros(2, 4, 8), torch.zeros(2, 4), tracked(4)), {}),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("backend", ["cpu", "cuda:triton", "reference"])
def test_a_kernel_called_with_an_input_that_requires_a_gradient_refuses(backend: str, name: str) -> None:
    """Whatever runs it: the refusal is the contract's, made before any backend's code. Without gradients the CPU's run."""
    call, make, options = KERNELS[name]
    if backend == "reference":
        calls: Any = ReferenceBackend(hal.Device.from_arch("cpu"))
    else:
        device = hal.Device.from_arch("cpu" if backend == "cpu" else "cuda:sm_90", torch_device="cpu")
        calls = hal.kernels(backend, device)
    with pytest.raises(hal.BackendError, match="no backward"):
        getattr(calls, call)(*make(), **options)
    if backend == "cpu":
        with torch.no_grad():
            getattr(calls, call)(*make(), **options)


def tracked(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, requires_grad=True)


def make_cache(requires_grad: bool = False) -> hal.KVCache:
    return hal.KVCache(torch.zeros(2, 4, 32, requires_grad=requires_grad), attention_layout(2, 8, 8, "float32"), 4, 4)


def one_request() -> hal.PagedBatch:
    return hal.PagedBatch(torch.tensor([0, 2]).int(), torch.tensor([2]).int(), torch.tensor([[0]]).int(), 2, 2)


def one_list() -> hal.VarlenBatch:
    ends = torch.tensor([0, 2]).int()
    return hal.VarlenBatch(q_start_loc=ends, k_start_loc=ends, max_query_len=2, max_seq_len=2)
