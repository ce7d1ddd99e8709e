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


def llava() -> PreTrainedConfig:
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    return transformers.LlavaConfig(
        text_config=deepseek_v32(), vision_config=vision, image_token_index=127, tie_word_embeddings=False
    )


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": llama,
    "mistral-window": mistral,
    "gemma2-softcap": gemma2,
    "gpt-oss-sinks": gpt_oss,
    "gpt-neox": gpt_neox,
    "deepseek-v3": deepseek_v3,
    "deepseek-v32": deepseek_v32,
    "glm-dsa-shared": glm_moe_dsa,
    "llava-v32": llava,
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
    return module.eval()
