"""Running attend over an engine's steps beside the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hal
from hal.config import LayerShape

from . import oracle
from .engine import Engine, Step


def run_step(
    engine: Engine, step: Step, to_batch: Callable[[hal.Batch], Any] | None = None, **batch: Any
) -> dict[int, torch.Tensor]:
    """Attend in every layer and hold each output against the definition; the outputs by layer.

    to_batch: what makes of the step's host batch the one to build.
    """
    made = engine.schedule(step, **batch)
    metadata = engine.attention.build(made if to_batch is None else to_batch(made))
    return {layer.layer_id: run_layer(engine, layer, step, metadata) for layer in engine.shape.layers}


def run_layer(engine: Engine, layer: LayerShape, step: Step, metadata: hal.StepMetadata) -> torch.Tensor:
    """One layer of a built step; rows of padded tokens are NaN on the way in."""
    tokens, count = metadata.num_tokens, metadata.num_tokens_padded
    q = padded(engine.random(tokens, layer.num_heads, layer.head_dim), count)
    sink = torch.randn(layer.num_heads, generator=engine.generator) if layer.sink else None
    k = v = None
    if layer.owns_kv:
        k = padded(engine.random(tokens, layer.num_kv_heads, layer.head_dim), count)
        v = padded(engine.random(tokens, layer.num_kv_heads, layer.v_head_dim), count)
        engine.record((layer.layer_id, "k"), step, k)
        engine.record((layer.layer_id, "v"), step, v)
    out = engine.attention.attend(layer.layer_id, q, k, v, metadata, sink=sink)
    expected = torch.zeros(count, layer.num_heads, layer.v_head_dim, dtype=torch.float64)
    histories = {
        name: [engine.requests[name].history((layer.kv_source, part)) for part in ("k", "v")] for name, new in step if new
    }
    for token, (name, position) in enumerate(engine.tokens(step)):
        running, (keys, values) = engine.requests[name], histories[name]
        chosen = [key for key in oracle.seen(layer, position, running.length) if key not in running.missing]
        expected[token] = oracle.attend(layer, q[token], keys[chosen], values[chosen], sink)
    oracle.expect_close(out, expected, str(engine.dtype).removeprefix("torch."))
    return out


def padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Rows and NaN after them, so many in all."""
    padding = rows.new_full((count - rows.shape[0], *rows.shape[1:]), torch.nan)
    return torch.cat([rows, padding])
