"""Bytes of every cache layout: the only place that computes them; codecs, planner and allocator call it."""

from __future__ import annotations

from .dtypes import item_size
from .errors import InputError

KIND_LAYOUTS = {
    "attention": ("kv", "kv_fp8"),
    "mla": ("latent", "latent_fp8", "fp8_ds_mla"),
    "compressed": ("latent", "compressed"),
}
"""The cache layouts of each kind of layer, the unquantised one first. A compressed layer's `latent` has no rotary part."""

FP8 = "fp8"
"""A layout by what it holds: for each layer the one of FP8_LAYOUTS that its family has."""

FP8_LAYOUTS = {"attention": "kv_fp8", "mla": "latent_fp8", "sparse_mla": "fp8_ds_mla", "compressed": "compressed"}
"""The fp8 layout in which models of each family of layers are served: sparse MLA's scales lie beside the values."""

INDEX_LAYOUTS = ("indexer", "indexer_fp8")
"""The cache layouts of index keys, the unquantised one first."""

QUANTISED_INDEX = frozenset({"indexer_fp8", "latent_fp8", "fp8_ds_mla", "compressed"})
"""Layouts with which index keys are `indexer_fp8`, where a backend has it."""


def kv_heads_on_rank(num_kv_heads: int, tp: int) -> int:
    """KV heads that one tensor-parallel rank stores: divided, or replicated when there are fewer heads than ranks."""
    if not isinstance(tp, int) or tp < 1:
        raise InputError(f"tp is {tp!r}; expected a whole number of at least 1")
    if num_kv_heads % tp and tp % num_kv_heads:
        raise InputError(
            f"{num_kv_heads} KV heads can neither be divided over nor replicated to {tp} ranks; "
            "use a tp that divides them or is a multiple of them"
        )
    return max(1, num_kv_heads // tp)


def row_bytes(elements: int, dtype: object) -> int:
    """A row of elements of one type."""
    return elements * item_size(dtype)


def attention_row_bytes(num_kv_heads: int, head_dim: int, v_head_dim: int, dtype: object) -> int:
    """One token of the `kv` layout, all K heads, then all V heads; of `kv_fp8` with an fp8 dtype."""
    return row_bytes(num_kv_heads * (head_dim + v_head_dim), dtype)


def latent_row_bytes(kv_lora_rank: int, qk_rope_head_dim: int, dtype: object) -> int:
    """One token of the `latent` layout, the compressed vector, then the shared rotary key; of `latent_fp8` with an fp8 dtype."""
    return row_bytes(kv_lora_rank + qk_rope_head_dim, dtype)


def fp8_ds_mla_row_bytes(kv_lora_rank: int, qk_rope_head_dim: int) -> int:
    """One token of `fp8_ds_mla`: e4m3 latent, one fp32 scale per 128 lanes, bf16 rotary key."""
    return kv_lora_rank + (kv_lora_rank + 127) // 128 * 4 + qk_rope_head_dim * 2


def compressed_planes(head_dim: int, rope_head_dim: int) -> tuple[int, int]:
    """One row of `compressed`, the two pieces that a page keeps apart.

    e4m3 values with bf16 rotary lanes, and one scale byte per 64 values padded to 8 bytes.
    """
    values = head_dim - rope_head_dim
    scales = ((values + 63) // 64 + 7) // 8 * 8
    return values + rope_head_dim * 2, scales


def compressed_row_bytes(head_dim: int, rope_head_dim: int) -> int:
    """One row of the `compressed` layout, both of its pieces."""
    return sum(compressed_planes(head_dim, rope_head_dim))


def index_planes(head_dim: int) -> tuple[int, int]:
    """One key of `indexer_fp8`, the two pieces that a page keeps apart: e4m3 values, one fp32 scale per 128 lanes."""
    return head_dim, (head_dim + 127) // 128 * 4


def index_row_bytes(head_dim: int, dtype: object = "bfloat16", quantised: bool = False) -> int:
    """One index key: plain elements, or e4m3 values with one fp32 scale per 128 lanes."""
    return sum(index_planes(head_dim)) if quantised else row_bytes(head_dim, dtype)


def page_bytes(row_bytes: int, block_size: int, alignment: int = 1) -> int:
    """One page of block_size rows, padded to a multiple of the alignment."""
    return -(-row_bytes * block_size // alignment) * alignment
