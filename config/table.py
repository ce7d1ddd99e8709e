"""A model's shape as text: one line about the model, then one row per kind of layer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from .layer_shape import LayerShape
from .runs import format_ids, group_layers

SIZED_IN = "bfloat16"
"""The type that the table gives sizes in, whatever the model's own is: tables of two models compare."""

HEADER = ("layers", "count", "kind", "heads", "kv", "K x V", "sees", "B/token", "notes")
WIDTH = 100


def format_table(
    facts: Iterable[str], layers: Sequence[LayerShape], draft_layers: Sequence[LayerShape], remarks: Iterable[str]
) -> str:
    """The facts on one line, wrapped; the table, in which equal layers share a row that lists their ids; the remarks."""
    rows = [HEADER, *(_row(*group) for group in group_layers(layers))]
    rows += [("draft " + row[0], *row[1:]) for row in (_row(*group) for group in group_layers(draft_layers))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = textwrap.fill(", ".join([*facts, f"B/token in {SIZED_IN}"]), WIDTH)
    return "\n".join([title, *lines, *remarks])


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
