"""Shapes in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hal.common.contract.plan_text import format_bytes
from hal.config import LayerShape, ModelShape

from .explain_answer import DeviceAnswer, Explanation


def say_layer(layer: LayerShape) -> str:
    """What one layer is: "sparse MLA, 128 heads, latent 512 + 64, top 2048 of 64 x 128 index heads"."""
    if layer.kind == "none":
        return "no attention"
    return ", ".join(_layer_words(layer))


def _layer_words(layer: LayerShape) -> Iterator[str]:
    if layer.mla is not None:
        yield "sparse MLA" if layer.indexer is not None else "MLA"
        yield f"{layer.num_heads} heads"
        yield f"latent {layer.mla.kv_lora_rank} + {layer.mla.qk_rope_head_dim}"
    else:
        yield {"attention": "attention", "compressed": "compressed", "cross": "cross attention"}[layer.kind]
        yield _say_heads(layer)
        widths = {layer.head_dim, layer.v_head_dim}
        yield f"head_dim {layer.head_dim}" if len(widths) == 1 else f"head_dim {layer.head_dim}/{layer.v_head_dim}"
    if layer.indexer is not None:
        indexer = layer.indexer
        scorer = f"{indexer.num_heads} index heads of {indexer.head_dim}" if indexer.owns else "an earlier layer's choice"
        yield f"top {indexer.topk} by {scorer}" + (f", keys pooled by {indexer.pool}" if indexer.pool > 1 else "")
    if layer.block_sparse is not None:
        blocks = layer.block_sparse
        yield f"top {blocks.topk_blocks} blocks of {blocks.block_size} by {blocks.num_heads} index heads of {blocks.head_dim}"
    yield from _mask_words(layer)


def _say_heads(layer: LayerShape) -> str:
    if layer.num_heads == layer.num_kv_heads:
        return f"{layer.num_heads} heads"
    return f"{layer.num_heads} heads over {layer.num_kv_heads} KV"


def _mask_words(layer: LayerShape) -> Iterator[str]:
    if layer.compress_ratio:
        yield f"compressed by {layer.compress_ratio}"
    if layer.window is not None:
        yield f"window {layer.window}"
    if layer.chunk is not None:
        yield f"chunks of {layer.chunk}"
    if layer.softcap is not None:
        yield f"softcap {layer.softcap:g}"
    if layer.sink:
        yield "sinks"
    if layer.position_bias is not None:
        yield f"{layer.position_bias} bias"
    if not layer.causal:
        yield "not causal"
    if layer.kind == "attention" and layer.kv_source != layer.layer_id:
        yield f"KV of layer {layer.kv_source}"


def say_model(shape: ModelShape) -> tuple[str, str]:
    """The model as a headline (type, layers, where its text config lies) and a line of widths."""
    where = f", read from {shape.text_path}" if shape.text_path else ""
    drafts = f" and {len(shape.draft_layers)} draft" if shape.draft_layers else ""
    positions = f"{shape.max_position_embeddings:,} positions" if shape.max_position_embeddings else "positions not stated"
    return (
        f"{shape.model_type or 'a model that names no type'}: {shape.num_layers}{drafts} layers{where}",
        f"hidden {shape.hidden_size:,}, vocabulary {shape.vocab_size:,}, {positions}, {shape.dtype or 'dtype not stated'}",
    )


def say_verdict(answer: Explanation) -> str:
    """On which of the devices asked for the model is served, and on which of those it has no room for a token."""
    if all(layer.kind in ("none", "cross") for layer in answer.shape.layers):
        return "verdict: no layer of it attends in a way that is hal's to serve"
    served = [found.device.target for found in answer.devices if found.is_served]
    others = [found.device.target for found in answer.devices if not found.is_served]
    if not served:
        return f"verdict: served nowhere that was asked for: {', '.join(others)}"
    rest = f"; not on {', '.join(others)}" if others else ""
    full = [found for found in answer.devices if found.is_served and found.capacity is not None and found.capacity.is_nothing]
    return f"verdict: served on {', '.join(served)}{rest}{_say_full(full)}"


def _say_full(full: Sequence[DeviceAnswer]) -> str:
    """Where a model that is served does not fit, with the memory of each device."""
    places = [f"{format_bytes(found.capacity.memory_bytes)} of {found.device.target}" for found in full if found.capacity]
    return f"; does not fit in the {' or the '.join(places)}" if places else ""
