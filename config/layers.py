"""Each layer's shape, from the fields of the whole model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from .bias import has_sink, is_causal, read_position_bias
from .block_sparse import is_picking, read_block_sparse
from .compressed import do_entries_overlap, read_compress_ratios, read_rope_width
from .fields import Fields
from .heads import read_head_dim, read_num_heads, read_num_kv_heads
from .indexer import read_indexers
from .kinds import CROSS, LINEAR, meaning
from .kv_source import read_group_sources, read_kv_sources
from .layer_shape import BlockSparseShape, LayerShape
from .layer_types import read_layer_types
from .layer_view import LayerView
from .mla import read_mla
from .scale import read_scale
from .source import MISSING
from .windows import read_chunk, read_window


def read_layers(fields: Fields, num_layers: int, hidden_size: int) -> tuple[tuple[LayerShape, ...], tuple[LayerShape, ...]]:
    """The decoder layers, and the draft (MTP) layers behind them."""
    types = read_layer_types(fields, num_layers)
    drafts = fields.count("num_nextn_predict_layers") or 0
    ratios = read_compress_ratios(fields, types, drafts)
    sources = read_kv_sources(fields, types)
    entry_sources = read_group_sources(fields, "kv_source_layer_ids", num_layers)
    indexers = read_indexers(fields, types)
    layers = []
    for layer_id, layer in enumerate(_base_layers(fields, types, hidden_size)):
        attending = layer.kind != "none"
        layer = dataclasses.replace(
            layer,
            layer_id=layer_id,
            kv_source=sources[layer_id] if attending else layer_id,
            indexer=indexers[layer_id] if attending else None,
        )
        if ratios is not None and attending:
            layer = _compress(fields, layer, types[layer_id], ratios[layer_id], entry_sources)
        layers.append(layer)
    draft_types = _draft_types(fields, types, drafts)
    return tuple(layers), tuple(
        _draft_layer(fields, layers, num_layers + step, draft_types[step], ratios, hidden_size) for step in range(drafts)
    )


def repeat_layers(
    layers: tuple[LayerShape, ...], draft_layers: tuple[LayerShape, ...], runs: int
) -> tuple[tuple[LayerShape, ...], tuple[LayerShape, ...]]:
    """The layers of a stack that runs several times, every run as layers of its own; draft layers follow the last run."""
    count = len(layers)
    repeated = tuple(_shift(layer, run * count) for run in range(runs) for layer in layers)
    return repeated, tuple(_shift(layer, (runs - 1) * count) for layer in draft_layers)


def _shift(layer: LayerShape, by: int) -> LayerShape:
    """The layer, and those that it reads from, that many ids further on."""
    entries = None if layer.entry_source is None else layer.entry_source + by
    return dataclasses.replace(layer, layer_id=layer.layer_id + by, kv_source=layer.kv_source + by, entry_source=entries)


def _base_layers(fields: Fields, types: tuple[str, ...], hidden_size: int) -> Iterator[LayerShape]:
    """Each layer in itself, its id not always its own: layers of one type that share every value are worked out once."""
    alike: dict[str, LayerShape] = {}
    turns: Counter[str] = Counter()
    for layer_id, kind in enumerate(types):
        if kind in alike:
            yield alike[kind]
            continue
        view = LayerView(fields, layer_id, kind, len(types), turns[kind])
        turns[kind] += 1
        layer = _base_layer(view, types, hidden_size)
        if not view.varies:
            alike[kind] = layer
        yield layer


def _base_layer(view: LayerView, types: tuple[str, ...], hidden_size: int) -> LayerShape:
    """A layer without what other layers decide: KV sources, indexer owners, compression."""
    if view.kind == LINEAR:
        return LayerShape(layer_id=view.layer_id, kind="none")
    fields = view.fields
    mla = None if fields.sequence("compress_ratios") or fields.nested("compress_rates") else read_mla(view)
    num_heads = read_num_heads(view)
    if mla and view.count("num_key_value_heads") not in (None, num_heads):
        fields.warn(
            "num_key_value_heads differs from num_attention_heads, which means nothing in MLA; every query head has its own KV"
        )
    head_dim = mla.qk_head_dim if mla else read_head_dim(view, hidden_size, num_heads)
    return LayerShape(
        layer_id=view.layer_id,
        kind="cross" if view.kind == CROSS else "mla" if mla else "attention",
        num_heads=num_heads,
        num_kv_heads=num_heads if mla else read_num_kv_heads(view, num_heads),
        head_dim=head_dim,
        v_head_dim=mla.v_head_dim if mla else view.count("v_head_dim") or head_dim,
        softmax_scale=read_scale(view, head_dim, mla is not None),
        window=read_window(view),
        chunk=read_chunk(view),
        sink=has_sink(view),
        softcap=view.number("attn_logit_softcapping"),
        causal=is_causal(fields),
        position_bias=read_position_bias(fields),
        mla=mla,
        block_sparse=_block_sparse(view, types),
    )


def _block_sparse(view: LayerView, types: tuple[str, ...]) -> BlockSparseShape | None:
    return read_block_sparse(view.fields, view.kind) if is_picking(view.kind, types) else None


def _compress(fields: Fields, layer: LayerShape, kind: str, ratio: int, entry_sources: tuple[int, ...] | None) -> LayerShape:
    """A V4 layer: one shared row per token in the window, and compressed entries that it may read from an earlier layer."""
    source = entry_sources[layer.layer_id] if entry_sources and layer.layer_id < len(entry_sources) else layer.layer_id
    return dataclasses.replace(
        layer,
        kind="compressed",
        compress_ratio=ratio,
        entry_source=(source if source >= 0 else layer.layer_id) if ratio else None,
        rope_head_dim=read_rope_width(fields, layer.head_dim),
        entries_overlap=do_entries_overlap(fields, kind, ratio) if ratio else None,
    )


def _draft_types(fields: Fields, types: tuple[str, ...], drafts: int) -> tuple[str, ...]:
    """The draft layers' types: their own list, else what follows in the decoder's list, else the last attending layer's."""
    group = fields.nested("mtp")
    grouped = group.read("layer_types") if group is not None else MISSING
    own = fields.sequence("mtp_layer_types") or (tuple(grouped) if isinstance(grouped, (list, tuple)) else ())
    listed = fields.raw("layer_types")
    behind = tuple(listed)[len(types) :] if isinstance(listed, (list, tuple)) else ()
    named = [meaning(item, "mtp_layer_types") for item in own or behind][:drafts]
    last = next((kind for kind in reversed(types) if kind not in (LINEAR, CROSS)), LINEAR)
    return (*named, *([last] * (drafts - len(named))))


def _draft_layer(
    fields: Fields, layers: list[LayerShape], layer_id: int, kind: str, ratios: tuple[int, ...] | None, hidden_size: int
) -> LayerShape:
    """A draft layer owns its cache and, in a sparse model, its indexer."""
    layer = _base_layer(LayerView(fields, layer_id, kind, len(layers)), (kind,), hidden_size)
    if layer.kind == "none":
        return layer
    if ratios is not None:
        return _compress(fields, layer, kind, ratios[layer_id], None)
    indexer = next((one.indexer for one in reversed(layers) if one.indexer is not None), None)
    return dataclasses.replace(layer, indexer=dataclasses.replace(indexer, owns=True) if indexer and layer.mla else None)
