"""Heads and widths: the sentinel rules, aliases, per-layer values, MLA and the sharing of KV between layers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hal.config import ConfigError, LayerShape, read_shape

BASE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
UNSET = [None, 0, -1, True, False, ""]


def first(**fields: Any) -> LayerShape:
    return read_shape(BASE | fields).layers[0]


@pytest.mark.parametrize("value", UNSET, ids=repr)
@pytest.mark.parametrize(
    "field", ["head_dim", "v_head_dim", "num_key_value_heads", "kv_lora_rank", "index_topk", "sliding_window"]
)
def test_unset_values_mean_absent(field: str, value: object) -> None:
    assert read_shape(BASE | {field: value}) == read_shape(BASE)


@pytest.mark.parametrize("value", UNSET, ids=repr)
@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_needed_counts_that_are_unset_are_errors(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        read_shape(BASE | {field: value})


@pytest.mark.parametrize(
    "value", ["abc", 1.5, float("nan"), float("inf"), 10**30, {}, object()], ids=lambda value: type(value).__name__
)
def test_impossible_counts_are_errors(value: object) -> None:
    with pytest.raises(ConfigError, match="num_attention_heads is "):
        read_shape(BASE | {"num_attention_heads": value})


@pytest.mark.parametrize("value", [10**30, 10**400, -(10**400), 10**5000], ids=lambda value: f"{value.bit_length()} bits")
@pytest.mark.parametrize("field", ["hidden_size", "attn_logit_softcapping", "rope_theta", "query_pre_attn_scalar", "dtype"])
def test_numbers_of_any_size_are_read_or_refused(field: str, value: int) -> None:
    with contextlib.suppress(ConfigError):
        read_shape(BASE | {field: value})


@pytest.mark.parametrize("value", UNSET, ids=repr)
def test_mla_switched_off_by_a_zero_value_width(value: object) -> None:
    """DeepSeek-VL2 says "no MLA" with zero widths; the value width is then the head width, never zero."""
    layer = first(use_mla=False, kv_lora_rank=None, qk_nope_head_dim=0, qk_rope_head_dim=0, v_head_dim=value)
    assert (layer.kind, layer.head_dim, layer.v_head_dim) == ("attention", 8, 8)


def test_declared_head_dim_needs_no_divisible_hidden_size() -> None:
    assert first(hidden_size=1792, num_attention_heads=24, head_dim=128).head_dim == 128
    with pytest.raises(ConfigError, match="hidden_size 1792 is not divisible by num_attention_heads 24"):
        first(hidden_size=1792, num_attention_heads=25 - 1)


def test_query_heads_must_be_shared_out_evenly() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads is 8 and num_key_value_heads is 3"):
        first(num_key_value_heads=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_layer": 4, "n_embd": 64, "n_head": 8},
        {"n_layers": 4, "d_model": 64, "n_heads": 8},
        {"num_layers": 4, "dim": 64, "n_heads": 8, "n_kv_heads": 8},
        {"num_transformer_layers": 4, "model_dim": 64, "num_query_heads": [8] * 4, "num_kv_heads": [8] * 4},
    ],
    ids=["gpt2", "mpt", "params", "openelm"],
)
def test_every_spelling_gives_the_same_shape(fields: dict[str, Any]) -> None:
    assert read_shape({"vocab_size": 100} | fields) == read_shape(BASE)


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({"multi_query": True, "num_kv_heads": 8}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 4}, 4),
        ({"multi_query": False, "num_kv_heads": 4}, 4),
        ({"n_head_kv": None}, 8),
        ({"attn_config": {"kv_n_heads": 2}}, 2),
        ({"attn_config": {"attn_type": "multiquery_attention"}}, 1),
        ({"attn_config": {"attn_type": "multihead_attention"}}, 8),
        ({"multi_query_group_num": 2}, 2),
    ],
    ids=["falcon", "falcon-new", "off", "null", "mpt-grouped", "mpt-multiquery", "mpt-multihead", "chatglm"],
)
def test_kv_heads_are_found_under_every_spelling(fields: dict[str, Any], kv_heads: int) -> None:
    assert first(**fields).num_kv_heads == kv_heads


def test_blocks_with_heads_of_their_own() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4}},
        {"attention": {"no_op": True}},
        {"attention": {"replace_with_linear": True}},
    ]
    layers = read_shape(BASE | {"block_configs": [*blocks, {"attention": {"n_heads_in_group": 8}}]}).layers
    assert [(layer.kind, layer.num_kv_heads) for layer in layers] == [
        ("attention", 2),
        ("none", 0),
        ("none", 0),
        ("attention", 1),
    ]


def test_twins_of_sliding_and_full_layers() -> None:
    layers = read_shape(
        BASE
        | {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 16, "head_dim": 24, "v_head_dim": 16}
        | {"swa_num_key_value_heads": 4, "num_key_value_heads": 2, "swa_head_dim": 32, "swa_v_head_dim": 0}
    ).layers
    assert [(one.num_kv_heads, one.head_dim, one.v_head_dim) for one in layers[:2]] == [(2, 24, 16), (4, 32, 16)]
    other = read_shape(
        BASE
        | {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 16, "head_dim": 24}
        | {"global_head_dim": 48, "num_global_key_value_heads": 1, "num_key_value_heads": 2, "num_sliding_attention_heads": 4}
    ).layers
    assert [(one.num_heads, one.num_kv_heads, one.head_dim) for one in other[:2]] == [(8, 1, 48), (4, 2, 24)]


def test_widths_may_stand_in_a_mapping_or_a_list_per_layer() -> None:
    layers = read_shape(
        BASE | {"head_dim": 8, "per_layer_config": {"01": {"head_dim": 16}, "3": {"num_key_value_heads": 2}}}
    ).layers
    assert [(one.head_dim, one.num_kv_heads) for one in layers] == [(8, 8), (16, 8), (8, 8), (8, 2)]
    assert [one.num_heads for one in read_shape(BASE | {"num_attention_heads_per_layer": [8, 4, 2, 1]}).layers] == [8, 4, 2, 1]
    with pytest.raises(ConfigError, match="has 3 entries, expected 4"):
        read_shape(BASE | {"num_attention_heads_per_layer": [8, 4, 2]})


def test_mla_is_known_by_its_fields() -> None:
    layer = first(**MLA, num_key_value_heads=2)
    assert (layer.kind, layer.num_kv_heads, layer.head_dim, layer.v_head_dim) == ("mla", 8, 24, 24)
    assert layer.mla is not None
    assert (layer.mla.latent_dim, layer.mla.q_lora_rank) == (40, None)
    assert read_shape(BASE | MLA | {"num_key_value_heads": 2}).warnings
    assert first(**MLA | {"use_mla": False}).kind == "attention"
    assert first(**MLA | {"qk_rope_head_dim": 0}).head_dim == 16


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7, expected an even number"),
        (
            {"qk_rope_head_dim": 0, "qk_nope_head_dim": None},
            "kv_lora_rank is 32 but qk_nope_head_dim and qk_rope_head_dim are both unset",
        ),
    ],
    ids=["odd rope", "no widths"],
)
def test_impossible_mla_widths_are_a_config_error(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        first(**MLA | fields)


def test_rope_width_that_an_alias_has_overwritten() -> None:
    """A class that aliases head_dim to the rope width turns 192 and 64 into rope 192; the total still says what is meant."""
    shape = read_shape(BASE | MLA | {"qk_nope_head_dim": 192, "qk_rope_head_dim": 192, "head_dim": 192, "qk_head_dim": 256})
    assert shape.layers[0].mla is not None
    assert (shape.layers[0].mla.qk_rope_head_dim, shape.layers[0].head_dim) == (64, 256)
    assert len(shape.warnings) == 1


def test_blocks_with_two_attentions_are_two_layers() -> None:
    blocks = {"num_layers": 3, "ffn_hidden_size": 128, "expert_ffn_hidden_size": 32}
    config = {name: value for name, value in BASE.items() if name != "num_hidden_layers"}
    assert read_shape(config | MLA | blocks).num_layers == 6
    assert read_shape(config | MLA | blocks | {"first_k_dense_replace": 1}).num_layers == 3


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        ({}, (0, 1, 2, 3)),
        ({"kv_source_layers": [0, 0, 2, 2]}, (0, 0, 2, 2)),
        (
            {"num_kv_shared_layers": 2, "layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 4},
            (0, 1, 0, 1),
        ),
        ({"use_cla": True, "cla_share_factor": 2}, (0, 0, 2, 2)),
        ({"use_cla": False, "cla_share_factor": 2}, (0, 1, 2, 3)),
    ],
    ids=["own", "listed", "last of its type", "groups", "groups off"],
)
def test_layers_that_share_kv_name_its_owner(fields: dict[str, Any], sources: tuple[int, ...]) -> None:
    shape = read_shape(BASE | fields)
    assert tuple(layer.kv_source for layer in shape.layers) == sources
    owners = len(set(sources))
    assert shape.kv_bytes_per_token() == owners * 8 * 16 * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_source_layers": [0, 2, 2, 3]},
        {"kv_source_layers": [0, 0, 1, 3]},
        {"kv_source_layers": [0, -1, 2, 3]},
        {"num_kv_shared_layers": 4},
    ],
    ids=["later", "not an owner", "negative", "no owner left"],
)
def test_an_impossible_kv_source_is_a_config_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kv_s"):
        read_shape(BASE | fields)


def test_heterogeneous_objects_are_read_layer_by_layer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma4TextConfig(num_hidden_layers=6, num_global_key_value_heads=2, attention_k_eq_v=True)
    with pytest.raises(RuntimeError):
        _ = config.head_dim
    layers = read_shape(config).layers
    assert [(one.head_dim, one.num_kv_heads) for one in layers] == [(256, 4)] * 5 + [(512, 2)]


def test_an_alias_that_a_transformers_class_lets_through() -> None:
    """Glm4MoeLite aliases head_dim to the rope width, so a file that states both ends up with the wrong one in its object."""
    transformers = pytest.importorskip("transformers")
    stated = {"head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "num_hidden_layers": 2}
    config = transformers.Glm4MoeLiteConfig.from_dict(stated)
    assert config.qk_rope_head_dim == 192
    from_object, from_file = read_shape(config), read_shape({"model_type": "glm4_moe_lite", **stated})
    assert from_object == from_file
    assert from_file.layers[0].head_dim == 192
    assert from_object.warnings
