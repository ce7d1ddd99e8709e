"""Which caches a layer keeps: its KV, the compressed entries behind it, index keys, and what its compressors remember."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hal.common.contract.errors import InputError
from hal.common.contract.layouts import Layout, layer_index_layout, layer_layout, state_layout
from hal.common.contract.parallel import Parallel
from hal.common.contract.selection import Selection
from hal.config import LayerShape, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePart:
    """One cache of a layer. window: how many tokens are kept, None for all; tokens_per_row: tokens that share a row.

    last_rows: a page keeps rows of its last so many tokens alone, a token's row being its offset modulo that; None: of all.
    """

    part: str
    layout: Layout
    window: int | None
    tokens_per_row: int = 1
    last_rows: int | None = None


def list_parts(
    layer: LayerShape,
    selection: Selection,
    dtype: str,
    parallel: Parallel,
    window: int | None,
    fp8: str | None = None,
    num_spec_tokens: int = 0,
) -> Iterator[CachePart]:
    """The caches that a layer owns, none where it reads another's.

    window: the widest of the layers that read its KV. fp8: the device's e4m3 variant. num_spec_tokens: how many of its last
    tokens a request may lose and write anew.
    """
    if layer.owns_kv:
        layout = layer_layout(layer, selection.kv_layout, dtype, parallel.tp, fp8)
        yield CachePart(part="kv", layout=layout, window=window)
    if layer.owns_entries:
        layout = layer_layout(layer, selection.kv_layout, dtype, parallel.tp, fp8)
        yield CachePart(part="entries", layout=layout, window=None, tokens_per_row=layer.compress_ratio or 1)
        yield _state("state", layer.head_dim, layer, dtype, num_spec_tokens)
    indexer = layer.indexer
    if indexer is None or not indexer.owns or selection.index_layout is None:
        return
    # An indexer scores every key, whatever its layer's window.
    keys = layer_index_layout(layer, dtype, selection.index_layout, fp8)
    yield CachePart(part="index", layout=keys, window=None, tokens_per_row=layer.tokens_per_index_key)
    if (layer.kind == "compressed" or indexer.pool > 1) and "compress_states" in selection.providers:
        yield _state("index_state", indexer.head_dim, layer, dtype, num_spec_tokens)


def check_entry_sources(shape: ModelShape) -> None:
    """Raise InputError where a layer reads entries that no earlier layer makes at its ratio."""
    for layer in shape.layers:
        if not layer.compress_ratio or layer.owns_entries:
            continue
        source = None if layer.entry_source is None else shape.layer(layer.entry_source)
        if source is None or not source.owns_entries or source.compress_ratio != layer.compress_ratio:
            made = f"one per {source.compress_ratio}" if source is not None and source.owns_entries else "none"
            raise InputError(
                f"layer {layer.layer_id} reads one entry per {layer.compress_ratio} tokens from layer {layer.entry_source}, "
                f"which makes {made}"
            )


def _state(part: str, width: int, layer: LayerShape, dtype: str, num_spec_tokens: int) -> CachePart:
    """The state of a compressor whose results have a width; its values are as many times as wide as groups overlap.

    Entries of a step are made of its own tokens and of at most span - 1 before them, so no page needs more rows than that
    and those of the tokens that may be lost.
    """
    ratio = layer.compress_ratio or layer.tokens_per_index_key
    span = layer.compress_span or ratio
    layout = state_layout(span // ratio * width, dtype)
    return CachePart(part=part, layout=layout, window=span, last_rows=span + num_spec_tokens)
