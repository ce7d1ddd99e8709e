"""Tiny image-text models: a vision part in its own code, and a text part whose fields lie in text_config alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PreTrainedConfig

from . import tiny

ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
GROUPED: dict[str, Any] = tiny.COMMON | {"num_key_value_heads": 2, "rms_norm_eps": 1e-6}
MARKS: dict[str, int] = {"image_token_id": 127, "video_token_id": 126, "vision_start_token_id": 125, "vision_end_token_id": 124}
TOWER: dict[str, int] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCHES: dict[str, int] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 1,
}


def llava_v32() -> PreTrainedConfig:
    vision = transformers.CLIPVisionConfig(**TOWER, image_size=16, patch_size=8)
    return transformers.LlavaConfig(
        text_config=tiny.deepseek_v32(), vision_config=vision, image_token_index=127, tie_word_embeddings=False
    )


def gemma3() -> PreTrainedConfig:
    vision = transformers.SiglipVisionConfig(**TOWER, image_size=16, patch_size=8, vision_use_head=False)
    return transformers.Gemma3Config(
        text_config=tiny.gemma3_text(), vision_config=vision, mm_tokens_per_image=4, image_token_id=127
    )


def kimi_k25() -> PreTrainedConfig:
    """The text part goes by the name that its files give it, which transformers knows as DeepSeek-V3's."""
    vision = {"patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4, "pos_emb_time": 2} | TOWER
    text = tiny.LATENT | {"model_type": "kimi_k2"}
    return transformers.Kimi_K25Config(
        text_config=text, vision_config=vision, projection_hidden_size=32, tie_word_embeddings=False, **MARKS
    )


def qwen25_vl() -> PreTrainedConfig:
    text = GROUPED | {
        "rope_parameters": ROPE | {"mrope_section": [2, 3, 3]},
        "use_sliding_window": True,
        "sliding_window": 12,
        "max_window_layers": 1,
    }
    vision = PATCHES | {"fullatt_block_indexes": [1], "window_size": 16}
    return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **MARKS)


def qwen25_vl_flat() -> PreTrainedConfig:
    """As its files were first written: text fields at the root, the window declared and switched off."""
    rope = {"rope_theta": 10000.0, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    window = {"use_sliding_window": False, "sliding_window": 12, "max_window_layers": 3}
    vision = PATCHES | {"fullatt_block_indexes": [1], "window_size": 16}
    return transformers.Qwen2_5_VLConfig.from_dict(GROUPED | rope | window | MARKS | {"vision_config": vision})


def qwen3_vl() -> PreTrainedConfig:
    rope = ROPE | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
    vision = PATCHES | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    return transformers.Qwen3VLConfig(
        text_config=GROUPED | {"head_dim": 16, "rope_parameters": rope}, vision_config=vision, tie_word_embeddings=False, **MARKS
    )


COMPOSITES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llava-v32": llava_v32,
    "gemma3": gemma3,
    "kimi-k25": kimi_k25,
    "qwen25-vl-window": qwen25_vl,
    "qwen25-vl-flat": qwen25_vl_flat,
    "qwen3-vl": qwen3_vl,
}


def plain_qwen2() -> PreTrainedConfig:
    return transformers.Qwen2Config(
        **GROUPED, rope_parameters=ROPE, use_sliding_window=True, sliding_window=12, max_window_layers=1
    )


def plain_qwen2_without_window() -> PreTrainedConfig:
    return transformers.Qwen2Config(**GROUPED, rope_parameters=ROPE)


def plain_qwen3() -> PreTrainedConfig:
    return transformers.Qwen3Config(**GROUPED, head_dim=16, rope_parameters=ROPE)


TWINS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llava-v32": tiny.deepseek_v32,
    "gemma3": tiny.gemma3_text,
    "kimi-k25": tiny.deepseek_v3,
    "qwen25-vl-window": plain_qwen2,
    "qwen25-vl-flat": plain_qwen2_without_window,
    "qwen3-vl": plain_qwen3,
}
"""The text-only model that each composite's text part is."""
