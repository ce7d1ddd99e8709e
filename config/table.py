"""A model's shape as text: one line about the model, then one row per kind of layer."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .shape import LayerShape, ModelShape

SIZED_IN = "bfloat16"
"""The type that the table gives sizes in, whatever the model's own is: tables of two models compare."""

HEADER = ("layers", "count", "kind", "heads", "kv", "K x V", "sees", "B/token", "notes")
WIDTH = 100
MOST_RUNS = 3
"""Runs of layer numbers written out before a row falls back to an ellipsis."""


def format_shape(shape: ModelShape) -> str:
    """The table: equal layers share a row, which lists their runs; warnings follow."""
    rows = [HEADER, *(_row(group) for group in group_layers(shape.layers))]
    rows += [("draft " + row[0], *row[1:]) for row in (_row(group) for group in group_layers(shape.draft_layers))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([_title(shape), *lines, *(f"warning: {text}" for text in shape.warnings)])


def group_layers(layers: Iterable[LayerShape]) -> list[list[LayerShape]]:
    """Layers that differ in nothing but their number, together, in the order of their first ones."""
    groups: dict[LayerShape, list[LayerShape]] = {}
    for layer in layers:
        own = dataclasses.replace(
            layer,
            layer_id=0,
            kv_source=0 if layer.kv_source == layer.layer_id else layer.kv_source + 1,
            entry_source=0 if layer.entry_source == layer.layer_id else layer.entry_source,
        )
        groups.setdefault(own, []).append(layer)
    return list(groups.values())


def format_runs(numbers: Iterable[int]) -> str:
    """ "0-4, 6-10": runs of neighbours, and the first few of many."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(parts) if len(parts) <= MOST_RUNS else ", ".join([*parts[: MOST_RUNS - 1], "..", parts[-1]])


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


def _row(group: list[LayerShape]) -> tuple[str, ...]:
    layer = group[0]
    runs, count = format_runs(one.layer_id for one in group), str(len(group))
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
