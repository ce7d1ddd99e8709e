"""What a checkpoint may hold beside its model: old masks, recomputed buffers and parts that are not built, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig

from hal.config import read_shape
from hal.models.build import build_module
from hal.models.checkpoint_index import CheckpointIndex
from hal.models.checkpoint_plan import plan_tensors
from hal.models.keys import KeyResolver
from hal.models.skipping import BufferRules

from .helpers import composites, tiny
from .helpers.headers import Extras, plan_with, stored

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


SMALL = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}
NARROW = SMALL | {"n_embd": 32, "n_layer": 2, "n_head": 2}
WIDE = SMALL | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
OLD_MASKS: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "gpt-neox": (lambda: transformers.GPTNeoXConfig(**WIDE, intermediate_size=64), "gpt_neox.layers.{}.attention"),
    "gpt2": (lambda: transformers.GPT2Config(**NARROW), "transformer.h.{}.attn"),
    "gptj": (lambda: transformers.GPTJConfig(**NARROW, rotary_dim=8), "transformer.h.{}.attn"),
    "gpt-neo": (
        lambda: transformers.GPTNeoConfig(
            **SMALL, hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
        ),
        "transformer.h.{}.attn.attention",
    ),
    "codegen": (lambda: transformers.CodeGenConfig(**(NARROW | {"n_head": 4}), rotary_dim=4), "transformer.h.{}.attn"),
    "bigcode": (lambda: transformers.GPTBigCodeConfig(**NARROW), "transformer.h.{}.attn"),
    "bloom": (
        lambda: transformers.BloomConfig(**SMALL, hidden_size=32, n_layer=2, n_head=2),
        "transformer.h.{}.self_attention",
    ),
    "opt": (
        lambda: transformers.OPTConfig(**WIDE, ffn_dim=64, word_embed_proj_dim=32),
        "model.decoder.layers.{}.self_attn",
    ),
    "falcon": (lambda: transformers.FalconConfig(**WIDE), "transformer.h.{}.self_attention"),
}


@pytest.mark.parametrize("case", OLD_MASKS.values(), ids=list(OLD_MASKS))
@pytest.mark.parametrize("wrapper", ["", "bare", "backbone."], ids=["own-names", "bare-names", "another-wrapper"])
def test_every_family_s_old_masks_are_skipped_and_what_looks_like_one_is_not(
    case: tuple[Callable[[], PreTrainedConfig], str], wrapper: str
) -> None:
    make, place = case
    front = place.partition(".")[0] + "."
    attention = place if not wrapper else place.removeprefix(front) if wrapper == "bare" else wrapper + place.removeprefix(front)
    one, other, none = (attention.format(number) for number in (0, 1, 7))
    old: Extras = {
        f"{one}.bias": MASK,
        f"{one}.masked_bias": SCALAR,
        f"{other}.masked_bias": ("F16", (1,)),
        f"{other}.causal_mask": ("U8", (1, 1, 64, 64)),
        f"{other}.scale_mask_softmax.causal_mask": ("F32", (16, 16)),
    }
    others: Extras = {
        f"{one}.bias_proj.weight": ("F32", (32, 32)),
        f"{one}.bias_k": MASK,
        f"{one}.scale_mask_softmax.bias": MASK,
        f"{other}.bias": ("F32", (32,)),
        f"{other}.masked_bias.weight": SCALAR,
        f"{none}.bias": MASK,
    }
    plan = plan_with(make(), {**old, **others})
    assert set(plan.skipped) == set(old)
    assert set(plan.unexpected) == set(others)


def test_a_persistent_mask_is_loaded_and_not_skipped() -> None:
    """Bark keeps its mask in the state; BarkCausalModel has no automatic class, so its parts are asked one by one."""
    from transformers.models.bark.modeling_bark import BarkSemanticModel

    sizes = {
        "num_layers": 2,
        "num_heads": 2,
        "hidden_size": 32,
        "block_size": 16,
        "input_vocab_size": 64,
        "output_vocab_size": 64,
    }
    module = BarkSemanticModel(transformers.BarkSemanticConfig(**sizes))
    resolver, rules = KeyResolver(module=module), BufferRules(module=module)
    masks = [name for name in resolver.state if name.endswith("attn.bias")]
    assert len(masks) == 2
    assert [resolver.resolve(name).target for name in masks] == masks  # type: ignore[union-attr]
    assert rules.explain(stored("layers.0.attn.masked_bias", "F32", ())) is not None
    assert rules.explain(stored("layers.0.attn.bias_k", "F32", (1, 1, 16, 16))) is None


@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (16, 16)], ids=["mask-shaped", "square"])
def test_a_parameter_called_as_an_old_mask_is_loaded(shape: tuple[int, ...]) -> None:
    module = build_module(transformers.GPT2Config(**NARROW))
    module.transformer.h[0].attn.bias = torch.nn.Parameter(torch.empty(shape, device="meta"))
    place = KeyResolver(module=module).resolve("h.0.attn.bias")
    assert place is not None
    assert place.target == "transformer.h.0.attn.bias"


@pytest.mark.parametrize("wrapper", ["backbone.", "model.model.", "language_model."])
def test_what_looks_like_an_old_mask_fills_a_parameter_under_another_wrapper(wrapper: str) -> None:
    config = transformers.GPT2Config(**NARROW)
    module = build_module(config)
    module.transformer.h[0].attn.bias = torch.nn.Parameter(torch.empty((1, 1, 16, 16), device="meta"))
    keys = {name: name.replace("transformer.", wrapper) for name in module.state_dict()}
    tensors = {keys[name]: stored(keys[name], "F32", tuple(x.shape)) for name, x in module.state_dict().items()}
    old = f"{wrapper}h.1.attn.bias"
    index = CheckpointIndex(folder=Path("folder"), tensors=tensors | {old: stored(old, "BOOL", (1, 1, 16, 16))})
    plan = plan_tensors(index, module, read_shape(config))
    assert plan.assigned["transformer.h.0.attn.bias"] == (f"{wrapper}h.0.attn.bias",)
    assert set(plan.skipped) == {old}
    assert plan.is_complete


@pytest.mark.parametrize("wrapper", ["", "backbone.", "language_model.model."])
def test_a_built_part_that_the_class_leaves_out_elsewhere_is_filled_under_another_wrapper(wrapper: str) -> None:
    """Its pattern names a norm that dense layers store in vain and that layers with experts have."""
    config = transformers.AXK1Config(**tiny.LATENT)
    module = build_module(config, torch.float32)
    # As its files name it.
    keys = {name: name.replace("mlp.post_mlp_", "post_mlp_") for name in module.state_dict()}
    keys |= {name: wrapper + key.removeprefix("model.") for name, key in keys.items() if name.startswith("model.")}
    tensors = {keys[name]: stored(keys[name], "F32", tuple(x.shape)) for name, x in module.state_dict().items()}
    plan = plan_tensors(CheckpointIndex(folder=Path("folder"), tensors=tensors), module, read_shape(config))
    assert sum("post_mlp_layernorm" in name for name in plan.assigned) > 0
    assert plan.is_complete


def test_the_number_of_an_old_format_is_skipped() -> None:
    make = OLD_MASKS["opt"][0]
    plan = plan_with(make(), {"model.decoder.version": ("F32", (1,)), "version": ("F32", (1,)), "decoder.version": ("F32", (3,))})
    assert set(plan.skipped) == {"model.decoder.version"}
    assert set(plan.unexpected) == {"version", "decoder.version"}


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
