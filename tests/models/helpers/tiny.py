"""Tiny random models of every family that hal.models serves, with weights large enough to tell outputs apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LATENT: dict[str, Any] = COMMON | {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
SPARSE: dict[str, Any] = {"index_topk": 8, "index_head_dim": 32, "index_n_heads": 16}


def llama() -> PreTrainedConfig:
    return transformers.LlamaConfig(**COMMON, num_key_value_heads=2)


def mistral() -> PreTrainedConfig:
    return transformers.MistralConfig(**COMMON, num_key_value_heads=2, sliding_window=12)


def gemma2() -> PreTrainedConfig:
    return transformers.Gemma2Config(
        **(COMMON | {"num_hidden_layers": 4}),
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=12,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=5.0,
    )


def gpt_oss() -> PreTrainedConfig:
    return transformers.GptOssConfig(
        **(COMMON | {"intermediate_size": 32, "num_hidden_layers": 4}),
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=12,
        num_local_experts=4,
        num_experts_per_tok=2,
    )


def gpt_neox() -> PreTrainedConfig:
    return transformers.GPTNeoXConfig(**COMMON, rotary_pct=0.25)


def deepseek_v3() -> PreTrainedConfig:
    return transformers.DeepseekV3Config(**LATENT)


def deepseek_v32() -> PreTrainedConfig:
    return transformers.DeepseekV32Config(**LATENT, **SPARSE)


def glm_moe_dsa() -> PreTrainedConfig:
    kwargs = LATENT | SPARSE | {"num_hidden_layers": 5, "index_topk_freq": 2, "index_skip_topk_offset": 2}
    return transformers.GlmMoeDsaConfig(**kwargs)


def deepseek_v4() -> PreTrainedConfig:
    return transformers.DeepseekV4Config(
        **(COMMON | {"num_hidden_layers": 4}),
        num_key_value_heads=1,
        head_dim=32,
        qk_rope_head_dim=8,
        q_lora_rank=48,
        moe_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        hc_mult=2,
        hc_sinkhorn_iters=4,
        num_hash_layers=1,
        sliding_window=16,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=4,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
        layer_types=[
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        tie_word_embeddings=False,
    )


def qwen3() -> PreTrainedConfig:
    return transformers.Qwen3Config(
        **COMMON, num_key_value_heads=2, head_dim=24, use_sliding_window=True, sliding_window=12, max_window_layers=1
    )


def qwen3_moe() -> PreTrainedConfig:
    return transformers.Qwen3MoeConfig(
        **COMMON, num_key_value_heads=2, head_dim=24, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
    )


def gemma3_text() -> PreTrainedConfig:
    return transformers.Gemma3TextConfig(
        **COMMON,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )


def phi3() -> PreTrainedConfig:
    return transformers.Phi3Config(**COMMON, num_key_value_heads=2, sliding_window=12)


def phi3_longrope() -> PreTrainedConfig:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 128,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + 0.5 * i for i in range(8)],
    }
    return transformers.Phi3Config(
        **COMMON, num_key_value_heads=2, original_max_position_embeddings=128, rope_parameters=rope, sliding_window=None
    )


def deepseek_v2() -> PreTrainedConfig:
    return transformers.DeepseekV2Config(**LATENT, topk_method="group_limited_greedy")


def deepseek_v2_lite() -> PreTrainedConfig:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
    }
    plain = {"q_lora_rank": None, "n_group": 1, "topk_method": "greedy", "rope_parameters": rope}
    return transformers.DeepseekV2Config(**(LATENT | plain))


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": llama,
    "mistral-window": mistral,
    "gemma2-softcap": gemma2,
    "gpt-oss-sinks": gpt_oss,
    "gpt-neox": gpt_neox,
    "deepseek-v3": deepseek_v3,
    "deepseek-v32": deepseek_v32,
    "glm-dsa-shared": glm_moe_dsa,
    "deepseek-v4": deepseek_v4,
    "qwen3-window": qwen3,
    "qwen3-moe": qwen3_moe,
    "gemma3-text": gemma3_text,
    "phi3-window": phi3,
    "phi3-longrope": phi3_longrope,
    "deepseek-v2": deepseek_v2,
    "deepseek-v2-lite-yarn": deepseek_v2_lite,
}


def build(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """The eager float32 model of a config; matrices are drawn N(0, 0.08), sinks and biases are not zero."""
    is_composite = config.get_text_config(decoder=True) is not config
    auto = transformers.AutoModelForImageTextToText if is_composite else transformers.AutoModelForCausalLM
    torch.manual_seed(seed)
    module: PreTrainedModel = auto.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.08)
            elif "sinks" in name or name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
        for name, buffer in module.named_buffers():
            if name.endswith("tid2eid"):
                buffer.random_(0, config.n_routed_experts)
    return module.eval()
