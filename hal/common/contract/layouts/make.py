"""Every layout by its widths."""

from __future__ import annotations

from dataclasses import replace

from hal.config.dtypes import dtype_name
from hal.config.sizes import compressed_planes, fp8_ds_mla_row_bytes, index_planes

from .fp8 import check_variant, storage_dtype
from .layout import Layout
from .row_layout import BlockScaling

_AMAX_FLOOR = 1e-4


def attention_layout(num_kv_heads: int, head_dim: int, v_head_dim: int, dtype: object) -> Layout:
    """The `kv` layout of this many heads on a rank."""
    return Layout(name="kv", dtype=dtype_name(dtype), parts=((num_kv_heads, head_dim), (num_kv_heads, v_head_dim)))


def attention_fp8_layout(num_kv_heads: int, head_dim: int, v_head_dim: int, fp8: str = "e4m3fn") -> Layout:
    """The `kv_fp8` layout: e4m3, with scales outside for K and V, [2], or for every head of them, [2, num_kv_heads]."""
    return Layout(
        name="kv_fp8",
        dtype=storage_dtype(fp8),
        parts=((num_kv_heads, head_dim), (num_kv_heads, v_head_dim)),
        fp8=fp8,
        scale_shapes=((2,), (2, num_kv_heads)),
    )


def latent_layout(kv_lora_rank: int, qk_rope_head_dim: int, dtype: object) -> Layout:
    """The `latent` layout; the rotary part may be empty."""
    return Layout(name="latent", dtype=dtype_name(dtype), parts=((kv_lora_rank,), (qk_rope_head_dim,)))


def latent_fp8_layout(kv_lora_rank: int, qk_rope_head_dim: int, fp8: str = "e4m3fn") -> Layout:
    """The `latent_fp8` layout: e4m3, with one scale outside, [1]."""
    return Layout(
        name="latent_fp8",
        dtype=storage_dtype(fp8),
        parts=((kv_lora_rank,), (qk_rope_head_dim,)),
        fp8=fp8,
        scale_shapes=((1,),),
    )


def fp8_ds_mla_layout(
    kv_lora_rank: int, qk_rope_head_dim: int, fp8: str = "e4m3fn", *, power_of_two_scales: bool = False
) -> Layout:
    """The `fp8_ds_mla` layout: e4m3 latent, fp32 scales per 128 lanes, bf16 rotary part, 656 bytes for 512 and 64."""
    return Layout(
        name="fp8_ds_mla",
        dtype="uint8",
        parts=((kv_lora_rank,), (qk_rope_head_dim,)),
        fp8=check_variant(fp8),
        planes=(fp8_ds_mla_row_bytes(kv_lora_rank, qk_rope_head_dim),),
        blocks=BlockScaling(
            lanes=kv_lora_rank,
            block=128,
            scale_format="power_of_two" if power_of_two_scales else "float32",
            amax_floor=0.0,
        ),
    )


def index_layout(head_dim: int, dtype: object) -> Layout:
    """The `indexer` layout: one unquantised index key per token."""
    return Layout(name="indexer", dtype=dtype_name(dtype), parts=((head_dim,),))


def index_fp8_layout(
    head_dim: int, fp8: str = "e4m3fn", *, power_of_two_scales: bool = False, tile: tuple[int, int] | None = None
) -> Layout:
    """The `indexer_fp8` layout: per page all e4m3 keys, then all fp32 scales, one per 128 lanes; amax is at least 1e-4.

    tile: (tokens, bytes) of the tiles in which a kernel wants a page's keys: all first bytes of a tile's tokens, then all
    next ones. Page sizes are multiples of its tokens then.
    """
    return Layout(
        name="indexer_fp8",
        dtype="uint8",
        parts=((head_dim,),),
        fp8=check_variant(fp8),
        planes=index_planes(head_dim),
        blocks=BlockScaling(
            lanes=head_dim,
            block=128,
            scale_format="power_of_two" if power_of_two_scales else "float32",
            amax_floor=_AMAX_FLOOR,
        ),
        tile=tile,
    )


def compressed_layout(head_dim: int, rope_head_dim: int, fp8: str = "e4m3fn") -> Layout:
    """The `compressed` layout: e4m3 values rounded to bf16 before, bf16 rotary lanes, one ue8m0 scale byte per 64 values.

    Per page all rows of values and rotary lanes, 576 bytes for 512 and 64, then all rows of scales, 8 bytes; pages are padded
    to a multiple of the former.
    """
    planes = compressed_planes(head_dim, rope_head_dim)
    return Layout(
        name="compressed",
        dtype="uint8",
        parts=((head_dim,),),
        fp8=check_variant(fp8),
        planes=planes,
        page_alignment=planes[0],
        blocks=BlockScaling(
            lanes=head_dim - rope_head_dim,
            block=64,
            scale_format="ue8m0",
            amax_floor=_AMAX_FLOOR,
            scales_last=True,
            rounds_to_bf16=True,
        ),
    )


def state_layout(width: int, dtype: str) -> Layout:
    """What a compressor remembers of one token: its values and its scores with the position's bias, both [width], in fp32."""
    return Layout(name="state", dtype="float64" if dtype == "float64" else "float32", parts=((width,), (width,)))


def change_variant(layout: Layout, fp8: str) -> Layout:
    """The same layout in another e4m3 variant; itself where it holds no fp8."""
    if layout.fp8 is None:
        return layout
    dtype = layout.dtype if layout.blocks is not None else storage_dtype(fp8)
    return replace(layout, fp8=check_variant(fp8), dtype=dtype)
