"""Bytes per token of every cache layout: the only place that computes them; codecs, planner and allocator call it."""

from __future__ import annotations

from .dtypes import item_size
from .errors import InputError


def kv_heads_on_rank(num_kv_heads: int, tp: int) -> int:
    """KV heads that one tensor-parallel rank stores: divided, or replicated when there are fewer heads than ranks."""
    if tp < 1:
        raise InputError(f"tp is {tp}; expected at least 1")
    if num_kv_heads % tp and tp % num_kv_heads:
        raise InputError(
            f"{num_kv_heads} KV heads can neither be divided over nor replicated to {tp} ranks; "
            "use a tp that divides them or is a multiple of them"
        )
    return max(1, num_kv_heads // tp)


def attention_row_bytes(num_kv_heads: int, head_dim: int, v_head_dim: int, dtype: object) -> int:
    """One token of the `kv` layout: all K heads, then all V heads."""
    return num_kv_heads * (head_dim + v_head_dim) * item_size(dtype)


def latent_row_bytes(kv_lora_rank: int, qk_rope_head_dim: int, dtype: object) -> int:
    """One token of the `latent` layout: the compressed vector, then the shared rotary key."""
    return (kv_lora_rank + qk_rope_head_dim) * item_size(dtype)


def fp8_ds_mla_row_bytes(kv_lora_rank: int, qk_rope_head_dim: int) -> int:
    """One token of `fp8_ds_mla`: e4m3 latent, one fp32 scale per 128 lanes, bf16 rotary key."""
    return kv_lora_rank + (kv_lora_rank + 127) // 128 * 4 + qk_rope_head_dim * 2


def compressed_row_bytes(head_dim: int, rope_head_dim: int) -> int:
    """One row of the `compressed` layout: e4m3 values, bf16 rotary lanes, one scale byte per 64 values padded to 8 bytes."""
    values = head_dim - rope_head_dim
    scales = ((values + 63) // 64 + 7) // 8 * 8
    return values + rope_head_dim * 2 + scales


def index_row_bytes(head_dim: int, dtype: object = "bfloat16", quantised: bool = False) -> int:
    """One index key: plain elements, or e4m3 values with one fp32 scale per 128 lanes."""
    return head_dim + (head_dim + 127) // 128 * 4 if quantised else head_dim * item_size(dtype)
