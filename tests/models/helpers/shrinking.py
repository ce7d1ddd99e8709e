"""Small configs of any transformers model type, made by rule: the same few sizes wherever a config has the field."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

NUM_LAYERS = 4
WIDTHS: dict[str, int] = {
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size": 64,
    "embedding_size": 64,
    "word_embed_proj_dim": 64,
    "embed_dim": 64,
    "n_embd": 64,
    "d_model": 64,
    "intermediate_size": 128,
    "ffn_hidden_size": 128,
    "ffn_dim": 128,
    "n_inner": 128,
    "d_ff": 128,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 8,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk_group": 1,
    "num_expert_group": 2,
    "top_k_experts": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "head_dim": 16,
    "attention_head_dim": 16,
    "kv_channels": 16,
    "rotary_dim": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "qk_head_dim": 48,
    "v_head_dim": 24,
    "index_topk": 8,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "first_k_dense_replace": 1,
    "sliding_window": 6,
    "window_size": 6,
    "attention_chunk_size": 8,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "max_seq_len": 256,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "hidden_size_per_layer_input": 16,
    "zero_expert_num": 2,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
    "o_groups": 2,
    "o_lora_rank": 16,
    "lru_width": 64,
    "state_size": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "out_hidden_size": 64,
    "projection_dim": 64,
    "text_hidden_size": 64,
    "projector_hidden_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
HIDDEN = ("hidden_size", "embed_dim", "out_hidden_size", "text_hidden_size")
"""Widths of the residual stream, which are heads times their width in a config without a head_dim."""

DEPTHS = frozenset(
    {
        "num_hidden_layers",
        "num_layers",
        "n_layer",
        "n_layers",
        "depth",
        "encoder_layers",
        "decoder_layers",
        "num_decoder_layers",
        "num_encoder_layers",
    }
)
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id", "forced_eos_token_id")


def small_configs(model_type: str) -> Iterator[Any]:
    """Configs of a type to try in turn, the smallest first; a way of shrinking that its class refuses gives none."""
    cls = CONFIG_MAPPING[model_type]
    try:
        fields = cls().to_dict()
    except Exception:  # noqa: BLE001 - a class whose own defaults it refuses
        return
    for way in WAYS:
        try:
            yield cls(**_shrink(copy.deepcopy(fields), way))
        except Exception:  # noqa: BLE001 - another way of shrinking follows
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of shrinking: sizes by field, and what becomes of lists with an entry a layer.

    lists: "first" keeps the first entries, "ends" the first ones and the last, "none" leaves them to the class.
    """

    widths: Mapping[str, int]
    lists: str = "first"


def _heads_of(width: int) -> Mapping[str, int]:
    return WIDTHS | dict.fromkeys(HIDDEN, 4 * width) | {"head_dim": width}


WAYS = (
    Way(widths=WIDTHS),
    Way(widths=WIDTHS, lists="ends"),
    Way(widths=WIDTHS, lists="none"),
    Way(widths=WIDTHS | {"num_key_value_heads": 4, "num_kv_heads": 4}),
    Way(widths=_heads_of(64)),
    Way(widths=_heads_of(128)),
    Way(widths={"vocab_size": 128}),
)


def _shrink(fields: dict[str, Any], way: Way) -> dict[str, Any]:
    """Known sizes in place of the config's; lists with an entry a layer are cut to the layers left, or left to the class."""
    depth = max((value for name, value in fields.items() if name in DEPTHS and _is_count(value)), default=0)
    is_latent = bool(fields.get("kv_lora_rank"))
    # Latent models spell their widths in parts, of which these are sums or other names.
    derived = ("head_dim", "qk_head_dim") if is_latent else ()
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if name in derived and value is not None and value == fields.get("qk_rope_head_dim"):
            small[name] = _shrink_value("qk_rope_head_dim", value, way, 4)
        if name in ("transformers_version", "architectures", "model_type", *derived):
            continue
        if isinstance(value, list) and depth and len(value) == depth:
            small |= _cut_list(name, value, min(depth, NUM_LAYERS), way)
        elif isinstance(value, dict):
            small[name] = _shrink_dict(name, value, way)
        else:
            small[name] = _shrink_value(name, value, way, 4 if is_latent else 2)
    return small


def _cut_list(name: str, value: list[Any], depth: int, way: Way) -> dict[str, Any]:
    if way.lists == "none":
        return {}
    return {name: value[: depth - 1] + value[-1:] if way.lists == "ends" else value[:depth]}


def _shrink_dict(name: str, value: dict[Any, Any], way: Way) -> dict[Any, Any]:
    if name == "per_layer_config":
        return {layer: fields for layer, fields in value.items() if int(layer) < NUM_LAYERS}
    if not name.endswith("config") and not name.startswith("rope_"):
        return value
    return _shrink(value, way) | ({"model_type": value["model_type"]} if "model_type" in value else {})


def _shrink_value(name: str, value: Any, way: Way, num_kv_heads: int) -> Any:
    if name in TOKENS:
        return None if value is None else TOKENS.index(name)
    if name == "num_key_value_heads" and (value is None or _is_count(value)) and name in way.widths:
        return min(value or num_kv_heads, max(num_kv_heads, way.widths[name]))
    if value is None and name == "head_dim":
        return way.widths.get(name)
    if not _is_count(value):
        return [2, 3, 3] if name == "mrope_section" else value
    if name in DEPTHS:
        return min(value, NUM_LAYERS)
    if name in way.widths:
        return min(value, way.widths[name])
    is_late_token = value >= WIDTHS["vocab_size"] and name.endswith(("token_id", "token_index"))
    return 100 + sum(map(ord, name)) % 28 if is_late_token else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
