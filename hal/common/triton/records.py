"""Launches on byte records, which hold their scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts import BlockScaling

from .columns import part_constants
from .launch import Launch
from .stored import Stored
from .tiles import block_side


def write_records_launch(stored: Stored, parts: Sequence[Any], slots: Any) -> Launch:
    """parts: one or two [tokens, width] of the layout, rows dense, none of them empty; slots int64 [tokens]."""
    first, second = parts[0], parts[-1]
    blocks = _blocks(stored)
    return Launch(
        kernel="records:write_records",
        grid=(slots.shape[0], blocks.num_blocks + 1),
        tensors={"first": first, "second": second, "cache": stored.rows},
        tables={"slots": slots},
        strides={"first_token": first.stride(0), "second_token": second.stride(0), "cache_row": stored.row},
        numbers={"page_stride": stored.page_stride, "num_slots": stored.num_slots, "amax_floor": float(blocks.amax_floor)},
        constants={
            **_constants(stored, blocks),
            "IS_POWER": blocks.scale_format != "float32",
            "ROUNDS": blocks.rounds_to_bf16,
        },
        num_warps=1,
    )


def read_records_launch(stored: Stored, rows: Any, parts: Sequence[Any]) -> Launch:
    """parts: one or two dense [rows, ...] fp32 to fill, none of them empty; rows int32."""
    blocks = _blocks(stored)
    return Launch(
        kernel="records:read_records",
        grid=(rows.shape[0], blocks.num_blocks + 1),
        tensors={"cache": stored.rows, "first": parts[0], "second": parts[-1]},
        tables={"rows": rows},
        strides={"cache_row": stored.row},
        numbers={"page_stride": stored.page_stride, "num_rows": stored.num_rows},
        constants=_constants(stored, blocks),
        num_warps=1,
    )


def _blocks(stored: Stored) -> BlockScaling:
    if stored.layout.blocks is None:
        raise LayoutError(f"layout {stored.layout.name!r} keeps plain elements, not byte records")
    return stored.layout.blocks


def _constants(stored: Stored, blocks: BlockScaling) -> dict[str, int | bool]:
    return {
        "PAGE": stored.block_size,
        **part_constants(stored.layout),
        "LANES": blocks.lanes,
        "SHARE": blocks.block,
        **stored.record_constants(),
        "FP8": stored.fp8,
        "IS_BYTE": blocks.scale_format == "ue8m0",
        "BLOCK": block_side(min(blocks.block, blocks.lanes)),
        "BLOCK_P": block_side(sum(stored.layout.widths) - blocks.lanes),
    }
