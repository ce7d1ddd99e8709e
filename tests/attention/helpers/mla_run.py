"""Running attend_mla over an engine's steps beside the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import hal
from hal.config import LayerShape

from . import oracle
from .engine import Engine, Step
from .gqa_run import padded
from .shapes import INDEX_HEADS, INDEX_WIDTH, MLA

Choose = Callable[[int, int, int], list[int]]


@dataclass(slots=True, kw_only=True)
class Weights:
    """A layer's up-projections."""

    w_uk: torch.Tensor
    w_uv: torch.Tensor


def bind(engine: Engine) -> dict[int, Weights]:
    """Random up-projections for every MLA layer."""
    weights = {}
    for layer in engine.shape.layers:
        w_uk = engine.random(layer.num_heads, MLA.qk_nope_head_dim, MLA.kv_lora_rank, scale=0.3)
        w_uv = engine.random(layer.num_heads, MLA.v_head_dim, MLA.kv_lora_rank, scale=0.3)
        engine.attention.bind_weights(layer.layer_id, w_uk, w_uv)
        weights[layer.layer_id] = Weights(w_uk=w_uk, w_uv=w_uv)
    return weights


def run_step(
    engine: Engine,
    weights: dict[int, Weights],
    step: Step,
    to_batch: Callable[[hal.Batch], Any] | None = None,
    **batch: Any,
) -> dict[int, torch.Tensor]:
    """Attend in every layer and hold each output against the definition; sharing layers see what the owner before them chose.

    to_batch: what makes of the step's host batch the one to build.
    """
    made = engine.schedule(step, **batch)
    metadata = engine.attention.build(made if to_batch is None else to_batch(made))
    outputs, choices = {}, None
    for layer in engine.shape.layers:
        index = None
        if layer.indexer is None:
            choices = None
        elif layer.indexer.owns:
            whole, choices = draw_index(engine, layer, step)
            index = hal.IndexInputs(*(padded(part, metadata.num_tokens_padded) for part in whole))
        outputs[layer.layer_id] = run_layer(engine, layer, weights[layer.layer_id], step, metadata, choices, index=index)
    return outputs


def run_layer(
    engine: Engine,
    layer: LayerShape,
    weights: Weights,
    step: Step,
    metadata: hal.StepMetadata,
    choices: list[list[int]] | None,
    *,
    absorb: bool = False,
    **arguments: Any,
) -> torch.Tensor:
    """One layer; choices: the keys of each token where not all. absorb: hand over q_nope through w_uk, and expect latents.

    Rows of padded tokens are NaN on the way in.
    """
    tokens = metadata.num_tokens
    q_nope, q_rope = (
        engine.random(tokens, layer.num_heads, MLA.qk_nope_head_dim),
        engine.random(tokens, layer.num_heads, MLA.qk_rope_head_dim),
    )
    latent, k_rope = engine.random(tokens, MLA.kv_lora_rank), engine.random(tokens, MLA.qk_rope_head_dim)
    engine.record((layer.layer_id, "latent"), step, latent)
    engine.record((layer.layer_id, "rope"), step, k_rope)
    sink = torch.randn(layer.num_heads, generator=engine.generator) if layer.sink else None
    nope = torch.einsum("thd,hdl->thl", q_nope, weights.w_uk) if absorb else q_nope
    inputs = [padded(part, metadata.num_tokens_padded) for part in (nope, q_rope, latent, k_rope)]
    out = engine.attention.attend_mla(layer.layer_id, *inputs, metadata, sink=sink, **arguments)
    w_uv = torch.eye(MLA.kv_lora_rank, dtype=torch.float64).expand(layer.num_heads, -1, -1) if absorb else weights.w_uv
    expected = out.new_zeros(out.shape, dtype=torch.float64)
    expanded = {}
    for name in {name for name, new in step if new}:
        latents, ropes = (engine.requests[name].history((layer.layer_id, part)) for part in ("latent", "rope"))
        expanded[name] = oracle.expand_latents(latents, ropes, weights.w_uk, w_uv)
    for token, (name, position) in enumerate(engine.tokens(step)):
        running, (keys, values) = engine.requests[name], expanded[name]
        chosen = [key for key in oracle.seen(layer, position, running.length) if key not in running.missing]
        if choices is not None:
            chosen = [key for key in chosen if key in choices[token]]
        q = torch.cat([q_nope[token], q_rope[token]], dim=-1)
        expected[token] = oracle.attend(layer, q, keys[chosen], values[chosen], sink)
    oracle.expect_close(out, expected, str(engine.dtype).removeprefix("torch."))
    return out


def draw_choice(engine: Engine, step: Step, width: int) -> tuple[torch.Tensor, list[list[int]]]:
    """For each token some of the keys it may see, in any order, among -1."""
    rows, choices = [], []
    for _, position in engine.tokens(step):
        keys = torch.randperm(position + 1, generator=engine.generator)[:width].tolist()
        kept = keys[: int(torch.randint(len(keys) + 1, (1,), generator=engine.generator))]
        cells = torch.randperm(width, generator=engine.generator)[: len(kept)].tolist()
        row = [-1] * width
        for cell, key in zip(cells, kept, strict=True):
            row[cell] = key
        rows.append(row)
        choices.append(kept)
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, width), choices


def draw_index(engine: Engine, layer: LayerShape, step: Step) -> tuple[hal.IndexInputs, list[list[int]]]:
    """Index inputs of small whole numbers, so that scores are exact and often equal, and the keys they choose."""
    tokens = sum(new for _, new in step)
    index = hal.IndexInputs(
        engine.integers(-2, 2, tokens, INDEX_HEADS, INDEX_WIDTH),
        engine.integers(-2, 2, tokens, INDEX_WIDTH),
        engine.integers(-2, 2, tokens, INDEX_HEADS),
    )
    engine.record((layer.layer_id, "index"), step, index.k)
    choices = []
    histories = {name: engine.requests[name].history((layer.layer_id, "index")) for name, new in step if new}
    for token, (name, position) in enumerate(engine.tokens(step)):
        keys = histories[name][: position + 1]
        there = [key for key in range(position + 1) if key not in engine.requests[name].missing]
        best = oracle.best_keys(index.q[token], index.weights[token], keys[there], layer.indexer.topk)
        choices.append([there[key] for key in best])
    return index, choices
