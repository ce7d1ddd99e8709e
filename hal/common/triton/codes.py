"""Launches on rows of e4m3 bytes whose scales lie outside the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .columns import column_tiles, columns_at_once, part_constants
from .launch import Launch
from .stored import HEAD_SCALES, ONE_SCALE, Stored


def write_codes_launch(stored: Stored, parts: Sequence[Any], slots: Any) -> Launch:
    """parts: one or two [tokens, width] of the layout, rows dense, none of them empty; slots int64 [tokens]."""
    first, second = parts[0], parts[-1]
    return Launch(
        kernel="codes:write_codes",
        grid=(slots.shape[0], column_tiles(stored.layout)),
        tensors={"first": first, "second": second, "cache": stored.rows},
        tables={"slots": slots, "scales": stored.scales},
        strides={"first_token": first.stride(0), "second_token": second.stride(0), "cache_row": stored.row},
        numbers={"page_stride": stored.page_stride, "num_slots": stored.num_slots},
        constants={"PAGE": stored.block_size, **_constants(stored)},
        num_warps=4,
    )


def read_codes_launch(stored: Stored, rows: Any, parts: Sequence[Any]) -> Launch:
    """parts: one or two dense [rows, ...] fp32 to fill, none of them empty; rows int32."""
    return Launch(
        kernel="codes:read_codes",
        grid=(rows.shape[0], column_tiles(stored.layout)),
        tensors={"cache": stored.rows, "first": parts[0], "second": parts[-1]},
        tables={"rows": rows, "scales": stored.scales},
        strides={"cache_row": stored.row},
        numbers={"num_rows": stored.num_rows},
        constants=_constants(stored),
        num_warps=4,
    )


def _constants(stored: Stored) -> dict[str, int | bool]:
    layout = stored.layout
    first, second = layout.widths
    has_heads = stored.scale_kind == HEAD_SCALES
    return {
        **part_constants(layout),
        "SHARE": layout.parts[0][1] if has_heads else first,
        "SECOND_SHARE": layout.parts[1][1] if has_heads else max(1, second),
        "SECOND_AT": 0 if stored.scale_kind == ONE_SCALE else (layout.parts[0][0] if has_heads else 1),
        "FP8": stored.fp8,
        "BLOCK": columns_at_once(layout),
    }
