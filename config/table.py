"""A model's shape as text: one line about the model, then one row per kind of layer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .runs import format_ids, group_layers

if TYPE_CHECKING:
    from .shape import LayerShape, ModelShape

SIZED_IN = "bfloat16"
"""The type that the table gives sizes in, whatever the model's own is: tables of two models compare."""

HEADER = ("layers", "count", "kind", "heads", "kv", "K x V", "sees", "B/token", "notes")
WIDTH = 100


def format_shape(shape: ModelShape) -> str:
    """The table: equal layers share a row, which lists their ids; warnings follow."""
    rows = [HEADER, *(_row(*group) for group in group_layers(shape.layers))]
    rows += [("draft " + row[0], *row[1:]) for row in (_row(*group) for group in group_layers(shape.draft_layers))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    remarks = [*(f"note: {text}" for text in shape.notes), *(f"warning: {text}" for text in shape.warnings)]
    return "\n".join([_title(shape), *lines, *remarks])


def _title(shape: ModelShape) -> str:
    parts = [
        shape.model_type or "unnamed type",
        f"{shape.num_layers} layers",
        f"hidden {shape.hidden_size}",
        f"vocabulary {shape.vocab_size}",
        shape.dtype or "dtype open",
        "tied embeddings" if shape.tie_word_embeddings else "",
        f"up to {shape.max_position_embeddings} positions" if shape.max_position_embeddings else "",
        f"text part in {shape.text_path}" if shape.text_path else "",
        f"B/token in {SIZED_IN}",
    ]
    return textwrap.fill(", ".join(part for part in parts if part), WIDTH)


def _row(layer: LayerShape, layer_ids: tuple[int, ...]) -> tuple[str, ...]:
    runs, count = format_ids(layer_ids), str(len(layer_ids))
    if layer.kind == "none":
        return (runs, count, layer.kind, "", "", "", "", "0", "no attention")
    cached = f"{layer.mla.kv_lora_rank}+{layer.mla.qk_rope_head_dim}" if layer.mla else str(layer.num_kv_heads)
    widths = f"{layer.head_dim} x {layer.v_head_dim}"
    size = layer.kv_bytes_per_token(dtype=SIZED_IN) + layer.index_bytes_per_token(dtype=SIZED_IN)
    return (runs, count, layer.kind, str(layer.num_heads), cached, widths, _sees(layer), str(size), ", ".join(_notes(layer)))


def _sees(layer: LayerShape) -> str:
    if layer.chunk:
        return f"chunk {layer.chunk}"
    if layer.window:
        return f"last {layer.window}"
    return "all" if layer.causal else "both ways"


def _notes(layer: LayerShape) -> Iterator[str]:
    if layer.compress_ratio:
        yield f"1/{layer.compress_ratio} entries" + ("" if layer.entry_source == layer.layer_id else f" of {layer.entry_source}")
    if layer.indexer:
        yield f"top {layer.indexer.topk}" + ("" if layer.indexer.owns else " reused")
    if layer.block_sparse:
        yield f"top {layer.block_sparse.topk_blocks} blocks of {layer.block_sparse.block_size}"
    if layer.kv_source != layer.layer_id:
        yield f"KV of layer {layer.kv_source}"
    if layer.sink:
        yield "sinks"
    if layer.softcap:
        yield f"softcap {layer.softcap:g}"
    if layer.position_bias:
        yield layer.position_bias
