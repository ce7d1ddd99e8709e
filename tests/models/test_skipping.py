"""What a checkpoint may hold beside its model: old masks, recomputed buffers and parts that are not built, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig

from . import composites, tiny
from .headers import Extras, plan_with

LINEAR: tuple[str, tuple[int, ...]] = ("F32", (4, 4))
VECTOR: tuple[str, tuple[int, ...]] = ("F32", (4,))
MASK: tuple[str, tuple[int, ...]] = ("BOOL", (1, 1, 32, 32))
SCALAR: tuple[str, tuple[int, ...]] = ("F32", ())


def glm4_moe() -> PreTrainedConfig:
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    return transformers.Glm4MoeConfig(**tiny.COMMON, num_key_value_heads=2, head_dim=16, **experts)


def ernie_moe() -> PreTrainedConfig:
    experts = {"moe_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2}
    return transformers.Ernie4_5_MoeConfig(**tiny.COMMON, num_key_value_heads=2, **experts)


def shared_keys(config_class: type[PreTrainedConfig], **fields: Any) -> PreTrainedConfig:
    """Four layers, of which the last two read the keys and values of the first two."""
    kinds = ["sliding_attention", "full_attention"] * 2
    common = tiny.COMMON | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "layer_types": kinds}
    inputs = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128}
    return config_class(**common, **inputs, **fields)


def gemma4() -> PreTrainedConfig:
    return shared_keys(transformers.Gemma4TextConfig)


def gemma3n() -> PreTrainedConfig:
    return shared_keys(transformers.Gemma3nTextConfig, activation_sparsity_pattern=[0.0] * 4)


def mimo() -> PreTrainedConfig:
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    return transformers.MiMoV2FlashConfig(**tiny.COMMON, num_key_value_heads=2, head_dim=16, v_head_dim=16, **experts)


Case = tuple[Callable[[], PreTrainedConfig], Extras, Extras]

PARTS: dict[str, Case] = {
    "deepseek-v3-draft-layer": (
        tiny.deepseek_v3,
        {"model.layers.61.eh_proj.weight": LINEAR, "model.layers.61.mlp.experts.0.up_proj.weight": LINEAR},
        {"model.layers.610.eh_proj.weight": LINEAR, "model.layers.1.eh_proj.weight": LINEAR, "model.layers.61_x.weight": VECTOR},
    ),
    "glm4-moe-draft-layers": (
        glm4_moe,
        {"model.layers.46.enorm.weight": VECTOR, "model.layers.92.shared_head.norm.weight": VECTOR},
        {"model.layers.47.enorm.weight": VECTOR, "model.layers.4.enorm.weight": VECTOR},
    ),
    "ernie-draft-block": (
        ernie_moe,
        {"model.mtp_block.0.self_attn.q_proj.weight": LINEAR, "model.mtp_emb_norm.0.weight": VECTOR, "mtp.fc.weight": LINEAR},
        {"model.smtp.weight": VECTOR, "model.layers.0.mtps.weight": VECTOR},
    ),
    "mimo-draft-block": (
        mimo,
        {"model.mtp.layers.0.eh_proj.weight": LINEAR},
        {"mtp.layers.0.eh_proj.weight": LINEAR, "model.mtp_layers.0.weight": VECTOR},
    ),
    "gemma4-shared-keys": (
        gemma4,
        {f"model.layers.{n}.self_attn.{part}.weight": VECTOR for n in (2, 3) for part in ("k_proj", "v_proj", "k_norm")},
        {"model.layers.2.self_attn.kv_proj.weight": VECTOR, "model.layers.1.self_attn.k_proj.extra": VECTOR},
    ),
    "gemma3n-shared-keys": (
        gemma3n,
        {f"model.layers.{n}.self_attn.{part}.weight": VECTOR for n in (2, 3) for part in ("k_proj", "v_proj", "k_norm")},
        {"model.layers.3.self_attn.k_proj_b.weight": VECTOR, "model.layers.0.self_attn.v_proj.scale": VECTOR},
    ),
    "gpt-neox-masks": (
        tiny.gpt_neox,
        {
            "gpt_neox.layers.0.attention.bias": MASK,
            "layers.1.attention.bias": ("U8", (32, 32)),
            "gpt_neox.layers.2.attention.masked_bias": SCALAR,
            "gpt_neox.layers.2.attention.rotary_emb.inv_freq": ("F32", (2,)),
        },
        {
            "gpt_neox.layers.0.attention.bias_proj.weight": LINEAR,
            "gpt_neox.layers.0.attention.bias_k": MASK,
            "gpt_neox.layers.1.attention.bias": ("F32", (1,)),
            "gpt_neox.layers.2.attention.bias": ("F32", (1, 2, 32, 32)),
            "gpt_neox.layers.1.attention.masked_bias": ("F32", (32, 32)),
            "gpt_neox.layers.0.mlp.gate.bias": ("F32", (1,)),
            "gpt_neox.layers.0.mlp.bias": ("F32", (32, 32)),
            "gpt_neox.layers.0.mlp.masked_bias": SCALAR,
            "gpt_neox.layers.9.attention.bias": MASK,
            "gpt_neox.attention.bias": MASK,
        },
    ),
    "gpt2-masks": (
        lambda: transformers.GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=2, n_positions=64),
        {"h.0.attn.bias": ("F32", (1, 1, 64, 64)), "transformer.h.1.attn.masked_bias": SCALAR},
        {"h.0.mlp.bias": MASK, "h.0.attn.bias_k.weight": LINEAR, "h.0.ln_1.masked_bias": SCALAR},
    ),
}


@pytest.mark.parametrize("case", PARTS.values(), ids=list(PARTS))
def test_what_is_not_built_is_listed_and_its_neighbours_are_unexpected(case: Case) -> None:
    make, left_out, unexpected = case
    plan = plan_with(make(), {**left_out, **unexpected})
    assert set(plan.skipped) | set(plan.unused) == set(left_out)
    assert set(plan.unexpected) == set(unexpected)
    assert plan.missing == ()


def test_a_pattern_of_the_class_takes_nothing_from_a_layer_that_is_built() -> None:
    config = tiny.deepseek_v3()
    config.num_hidden_layers = 62
    plan = plan_with(config, {"model.layers.61.eh_proj.weight": LINEAR})
    assert plan.unexpected == ("model.layers.61.eh_proj.weight",)


def test_a_vision_part_as_deep_as_the_text_has_no_draft_layers() -> None:
    config = composites.qwen25_vl()
    config.text_config.num_hidden_layers = config.vision_config.depth
    config.text_config.num_nextn_predict_layers = 1
    assert plan_with(config, {"model.visual.blocks.2.norm.weight": VECTOR}).unexpected == ("model.visual.blocks.2.norm.weight",)


@pytest.mark.parametrize("prefix", ["teacher.model", "ema"])
def test_a_second_copy_of_filled_parameters_is_unexpected(prefix: str) -> None:
    extras: Extras = {f"{prefix}.norm.weight": ("F32", (64,)), f"{prefix}.layers.0.input_layernorm.weight": ("F32", (64,))}
    plan = plan_with(tiny.llama(), extras)
    assert set(plan.unexpected) == set(extras)
    assert (plan.collisions, plan.renamed, plan.missing) == ({}, {}, ())


def test_a_second_copy_fills_only_what_is_free() -> None:
    extras: Extras = {"ema.norm.weight": ("F32", (64,)), "ema.layers.0.input_layernorm.weight": ("F32", (64,))}
    plan = plan_with(tiny.llama(), extras, without=("model.norm.",))
    assert set(plan.unexpected) == set(extras)
    assert plan.missing == ("model.norm.weight",)
