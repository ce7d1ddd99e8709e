"""The widths of each latent, sparse and compressed family equal the parameters and caches of the model transformers builds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hal.config import LayerShape, read_shape

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import AutoModel  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

TINY: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "index_topk": 8,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "num_layers": 2,
    "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32,
    "zero_expert_num": 4,
    "moe_topk": 2,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
    "max_position_embeddings": 512,
}
LATENT = {
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "glm_moe_dsa": {"index_topk_freq": 2, "index_skip_topk_offset": 2},
    "glm4_moe_lite": {},
    "minicpm3": {},
    "youtu": {},
    "axk1": {},
    "axk2": {},
    "mistral4": {},
    "mistral_large4_text": {},
    "hy_v4": {},
    "dots3_note_text": {"num_hidden_layers": 6},
    "kimi_linear": {"num_hidden_layers": 5},
    "bailing_hybrid": {"layer_group_size": 2},
    "longcat_flash": {"head_dim": 16},
    "glm5_next_text": {"qk_rope_head_dim": 0, "index_topk": 32},
}


def build(name: str, extra: dict[str, Any]) -> Any:
    """A small config of the type; fields that its class does not declare are left out."""
    cls = CONFIG_MAPPING[name]
    declared = {item.name for item in dataclasses.fields(cls)}
    return cls(**{field: value for field, value in TINY.items() if field in declared} | extra)


def rows(module: Any) -> int:
    return int(module.weight.shape[0])


@pytest.mark.parametrize("name", LATENT)
def test_latent_widths_are_those_of_the_models_projections(name: str) -> None:
    config = build(name, LATENT[name])
    shape = read_shape(config)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    found = {module.layer_idx: module for _, module in model.named_modules() if hasattr(module, "kv_b_proj")}
    assert sorted(found) == [layer.layer_id for layer in shape.layers if layer.kind == "mla"]
    for layer_id, module in found.items():
        layer = shape.layer(layer_id)
        check_projections(layer, module)
        indexer = getattr(module, "indexer", None)
        owns = layer.indexer is not None and layer.indexer.owns
        assert (indexer is not None) == owns
        if indexer is not None and layer.indexer is not None:
            check_indexer(layer, indexer)


def check_projections(layer: LayerShape, module: Any) -> None:
    mla = layer.mla
    assert mla is not None
    assert rows(module.kv_b_proj) == layer.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    assert module.kv_b_proj.weight.shape[1] == mla.kv_lora_rank
    down = getattr(module, "kv_a_proj_with_mqa", None)
    assert down is None or rows(down) == mla.latent_dim
    gated = getattr(module, "q_gate_proj", None)
    if gated is not None:
        assert rows(gated) == layer.num_heads * (layer.head_dim + layer.v_head_dim)
    else:
        parts = [part for name, part in module.named_children() if name.startswith("q") and hasattr(part, "weight")]
        wanted = (layer.num_heads * layer.head_dim, mla.q_lora_rank or TINY["hidden_size"])
        assert wanted in [tuple(part.weight.shape) for part in parts]
    assert module.scaling == pytest.approx(layer.softmax_scale)


def check_indexer(layer: LayerShape, module: Any) -> None:
    assert layer.indexer is not None
    query = getattr(module, "wq_b", None) or getattr(module, "q_b_proj", None) or getattr(module, "wq", None)
    if query is not None:
        assert rows(query) == layer.indexer.num_heads * layer.indexer.head_dim
    key = getattr(module, "wk", None) or getattr(module, "k_proj", None)
    if key is not None:
        assert rows(key) == layer.indexer.head_dim


@pytest.mark.parametrize("name", LATENT)
def test_latent_widths_are_those_of_the_models_cache(name: str) -> None:
    """transformers caches the latent as key and the rotary part as value: one shared head each."""
    config = build(name, LATENT[name])
    shape = read_shape(config)
    torch.manual_seed(0)
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.arange(1, 10)[None], use_cache=True).past_key_values
    latent = [(layer, cached) for layer, cached in zip(shape.layers, cache.layers, strict=True) if layer.mla is not None]
    assert latent
    for layer, cached in latent:
        assert cached.keys.shape[1] == 1
        assert (cached.keys.shape[-1], cached.values.shape[-1]) == (layer.mla.kv_lora_rank, layer.mla.qk_rope_head_dim)
        width = cached.keys.shape[-1] + cached.values.shape[-1]
        assert layer.kv_bytes_per_token("latent", "float32") == 4 * width
        keys = getattr(cached, "indexer_keys", None)
        if layer.indexer is not None and layer.indexer.owns and layer.indexer.pool == 1:
            assert keys is not None
            assert keys.shape[-1] == layer.indexer.head_dim


def compressed_config() -> Any:
    extra = {
        "head_dim": 32,
        "num_key_value_heads": 1,
        "sliding_window": 16,
        "o_groups": 2,
        "o_lora_rank": 16,
        "qk_rope_head_dim": 8,
    }
    extra |= {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}, "index_head_dim": 16}
    types = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
    return build("deepseek_v4", extra | {"layer_types": types, "num_hash_layers": 1, "index_topk": 4})


def test_compressed_widths_are_those_of_the_models_projections() -> None:
    config = compressed_config()
    shape = read_shape(config)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert [layer.kind for layer in shape.layers] == ["compressed"] * 4
    for layer, module in zip(shape.layers, [one.self_attn for one in model.layers], strict=True):
        assert rows(module.q_b_proj) == layer.num_heads * layer.head_dim
        assert rows(module.kv_proj) == layer.num_kv_heads * layer.head_dim
        assert (module.sinks is not None) == layer.sink
        compressor = getattr(module, "compressor", None)
        assert (compressor is not None) == bool(layer.compress_ratio)
        assert (getattr(compressor, "indexer", None) is not None) == (layer.indexer is not None)
        assert module.scaling == pytest.approx(layer.softmax_scale)


def test_compressed_widths_are_those_of_the_models_cache() -> None:
    """One row per token serves as key and value alike, one shared head wide."""
    config = compressed_config()
    shape = read_shape(config)
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            buffer.random_(0, config.n_routed_experts)
    with torch.no_grad():
        cache = model(torch.arange(1, 10)[None], use_cache=True).past_key_values
    for layer, cached in zip(shape.layers, cache.layers, strict=True):
        assert (cached.keys.shape[1], cached.keys.shape[-1]) == (layer.num_kv_heads, layer.head_dim)
        assert layer.kv_bytes_per_token("auto", "float32") == 4 * cached.keys.shape[-1]
