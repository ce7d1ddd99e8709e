"""Each layer's shape, from the fields of the whole model."""

from __future__ import annotations

import dataclasses

from .errors import ConfigError
from .fields import Fields, per_layer
from .indexer import read_indexer, read_owners
from .mla import read_mla
from .scale import read_scale
from .shape import IndexerShape, LayerShape, MLAShape
from .sinks import has_sink
from .source import MISSING
from .values import as_count
from .windows import NO_ATTENTION, read_chunk, read_layer_types, read_window


def read_layers(fields: Fields, num_layers: int, hidden_size: int) -> tuple[LayerShape, ...]:
    """All decoder layers, in order."""
    types = read_layer_types(fields, num_layers)
    mla = read_mla(fields)
    indexer = read_indexer(fields)
    owners = read_owners(fields, num_layers) if indexer else ()
    return tuple(
        _mla_layer(fields, layer_id, kind, mla, _owned(indexer, owners, layer_id))
        if mla
        else _attention_layer(fields, layer_id, kind, hidden_size)
        for layer_id, kind in enumerate(types)
    )


def read_draft_layers(fields: Fields, layers: tuple[LayerShape, ...]) -> tuple[LayerShape, ...]:
    """The draft (MTP) layers behind the decoder: like the last layer, but each owns its cache and its indexer."""
    count = fields.count("num_nextn_predict_layers") or 0
    return tuple(_draft(layers[-1], len(layers) + step) for step in range(count))


def _draft(last: LayerShape, layer_id: int) -> LayerShape:
    indexer = dataclasses.replace(last.indexer, owns=True) if last.indexer else None
    return dataclasses.replace(last, layer_id=layer_id, kv_source=layer_id, indexer=indexer)


def _owned(indexer: IndexerShape | None, owners: tuple[bool, ...], layer_id: int) -> IndexerShape | None:
    return dataclasses.replace(indexer, owns=owners[layer_id]) if indexer else None


def _mla_layer(
    fields: Fields, layer_id: int, kind: str, mla: MLAShape, indexer: IndexerShape | None
) -> LayerShape:
    if kind in NO_ATTENTION:
        return LayerShape(layer_id=layer_id, kind="none")
    num_heads = fields.require_count("num_attention_heads")
    head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    return LayerShape(
        layer_id=layer_id,
        kind="mla",
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        v_head_dim=mla.v_head_dim,
        softmax_scale=read_scale(fields, head_dim, is_mla=True),
        window=read_window(fields, layer_id, kind),
        sink=has_sink(fields, kind),
        mla=mla,
        indexer=indexer,
    )


def _attention_layer(fields: Fields, layer_id: int, kind: str, hidden_size: int) -> LayerShape:
    if kind in NO_ATTENTION:
        return LayerShape(layer_id=layer_id, kind="none")
    num_heads = _layer_count(fields, "num_attention_heads", layer_id, kind)
    if num_heads is None:
        raise ConfigError(fields.absent("num_attention_heads"))
    num_kv_heads = _layer_count(fields, "num_key_value_heads", layer_id, kind) or num_heads
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"layer {layer_id}: num_attention_heads is {num_heads} and num_key_value_heads is {num_kv_heads}; expected a whole number of query heads per KV head"
        )
    head_dim = _layer_count(fields, "head_dim", layer_id, kind) or _derive_head_dim(hidden_size, num_heads)
    return LayerShape(
        layer_id=layer_id,
        kind="attention",
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=_layer_count(fields, "v_head_dim", layer_id, kind) or head_dim,
        softmax_scale=read_scale(fields, head_dim, is_mla=False),
        window=read_window(fields, layer_id, kind),
        chunk=read_chunk(fields, layer_id, kind),
        sink=has_sink(fields, kind),
        softcap=fields.number("attn_logit_softcapping"),
    )


def _layer_count(fields: Fields, field: str, layer_id: int, kind: str) -> int | None:
    value = fields.raw(field)
    if value is MISSING or not isinstance(value, (list, tuple, dict)):
        return fields.count(field)
    return as_count(per_layer(value, layer_id, kind, field), field)


def _derive_head_dim(hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        raise ConfigError(
            f"head_dim is unset and hidden_size {hidden_size} is not divisible by num_attention_heads {num_heads}; state head_dim"
        )
    return hidden_size // num_heads
