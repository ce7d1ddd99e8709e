"""Gradients and inference mode, whatever an engine has them set to: the same results, and caches that stay plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import hal

from .engine import Engine
from .shapes import gqa, mla, model, sparse

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
def test_modes_change_nothing(opened: str, stepped: str) -> None:
    _, expected = run("no_grad", "no_grad")
    _, outs = run(opened, stepped)
    assert all(torch.equal(out, other) for out, other in zip(outs, expected, strict=True))


@pytest.mark.parametrize("stepped", ["plain", "no_grad"])
def test_inputs_that_require_gradients_give_none_and_tie_no_cache_to_them(stepped: str) -> None:
    _, expected = run("plain", "no_grad")
    engine, outs = run("plain", stepped, requires_grad=True)
    assert all(torch.equal(out, other) for out, other in zip(outs, expected, strict=True))
    assert not any(out.requires_grad for out in outs)
    assert not any(cache.storage.requires_grad for cache in engine.attention.caches.values())
