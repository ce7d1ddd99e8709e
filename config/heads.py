"""Heads and widths of ordinary attention."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ConfigError
from .fields import Fields
from .layer_view import LayerView
from .source import MISSING
from .values import as_count


def read_num_heads(layer: LayerView) -> int:
    """Query heads. ConfigError: unset everywhere."""
    found = layer.count("num_attention_heads")
    if found is None:
        raise ConfigError(layer.fields.absent("num_attention_heads"))
    return found


def read_num_kv_heads(layer: LayerView, num_heads: int) -> int:
    """KV heads; as many as query heads where nothing is said. ConfigError: query heads cannot be shared out evenly."""
    found = _block_kv_heads(layer, num_heads) or _multi_query(layer.fields) or _grouped(layer) or num_heads
    if num_heads % found:
        raise ConfigError(
            f"layer {layer.layer_id}: num_attention_heads is {num_heads} and num_key_value_heads is {found}; "
            "expected a whole number of query heads per KV head"
        )
    return found


def _multi_query(fields: Fields) -> int | None:
    """One KV head where a model says multi-query, unless it has Falcon's newer grouped form."""
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    group = fields.nested("attn_config")
    return 1 if group is not None and group.read("attn_type") == "multiquery_attention" else None


def _grouped(layer: LayerView) -> int | None:
    stated = layer.count("num_key_value_heads")
    group = layer.fields.nested("attn_config") if stated is None else None
    if group is None:
        return stated and stated * _times(layer)
    value = group.read("kv_n_heads")
    return as_count(value, group.describe("kv_n_heads")) if value is not MISSING else None


def _times(layer: LayerView) -> int:
    """How many KV heads the type's code gives a layer for each that the config counts, unless its own count is stated."""
    times = layer.fields.known.facts.get("kv_heads_times")
    own = layer.fields.raw("swa_num_key_value_heads") is not MISSING
    return int(times.get(layer.kind, 1)) if isinstance(times, Mapping) and not own else 1


def _block_kv_heads(layer: LayerView, num_heads: int) -> int | None:
    """Nemotron-NAS: each block says how many query heads share a KV head."""
    blocks = layer.fields.groups("block_configs")
    layer.varies = layer.varies or bool(blocks)
    attention = blocks[layer.layer_id].child("attention") if layer.layer_id < len(blocks) else None
    value = attention.read("n_heads_in_group") if attention else None
    group = as_count(value or None, f"block_configs[{layer.layer_id}].attention.n_heads_in_group")
    if group is None:
        return None
    if num_heads % group:
        raise ConfigError(
            f"block_configs[{layer.layer_id}].attention.n_heads_in_group is {group}, expected a divisor of {num_heads} heads"
        )
    return num_heads // group


def read_head_dim(layer: LayerView, hidden_size: int, num_heads: int) -> int:
    """The query/key width; hidden_size / num_heads where it is unset. ConfigError: that is no whole number."""
    declared = layer.count("head_dim")
    if declared is not None:
        return declared
    if hidden_size % num_heads:
        raise ConfigError(
            f"head_dim is unset and hidden_size {hidden_size} is not divisible by num_attention_heads {num_heads}; state head_dim"
        )
    return hidden_size // num_heads
