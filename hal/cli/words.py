"""Shapes and sizes in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hal.config import LayerShape, ModelShape


def say_bytes(count: float) -> str:
    """A size with a binary unit: "1.5 GiB"; below 10 KiB in bytes, digits grouped."""
    if count < 10 * 1024:
        return f"{count:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def say_ids(layer_ids: Iterable[int]) -> str:
    """Layer ids as ranges: "0-2, 5"; an even spacing is said as "0-30 by 2", the middle of a long list as "..."."""
    runs = [_say_run(run) for run in _runs(sorted(layer_ids))]
    if len(runs) > 4:
        runs = [*runs[:2], "...", runs[-1]]
    return ", ".join(runs)


def _runs(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Evenly spaced stretches, the longest first; a spacing other than 1 needs three members to count."""
    start = 0
    while start < len(ids):
        stop = start + 1
        step = ids[stop] - ids[start] if stop < len(ids) else 1
        while stop < len(ids) and ids[stop] - ids[stop - 1] == step:
            stop += 1
        if step != 1 and stop - start < 3:
            stop = start + 1
        yield ids[start:stop]
        start = stop


def _say_run(run: Sequence[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    step = run[1] - run[0]
    return f"{run[0]}-{run[-1]}" + (f" by {step}" if step != 1 else "")


def group_alike(layers: Iterable[LayerShape]) -> tuple[tuple[LayerShape, tuple[int, ...]], ...]:
    """Layers that differ in nothing but their ids, each group by its first layer and all its ids."""
    groups: dict[LayerShape, list[LayerShape]] = {}
    for layer in layers:
        groups.setdefault(_without_ids(layer), []).append(layer)
    return tuple((members[0], tuple(layer.layer_id for layer in members)) for members in groups.values())


def _without_ids(layer: LayerShape) -> LayerShape:
    """The layer as id 0; what it reads of itself reads itself still, what it reads of another layer stays as it is."""
    own = layer.layer_id
    kv, entries = (-1 if source == own else source for source in (layer.kv_source, layer.entry_source))
    return replace(layer, layer_id=0, kv_source=-1 if kv is None else kv, entry_source=entries)


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
