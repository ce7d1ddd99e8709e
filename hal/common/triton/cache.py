"""Launches that write rows of a cache and read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hal.common.contract.call_values import KVCache
from hal.common.contract.dense import dense_numbers, dense_rows
from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts import UNQUANTISED, Layout

from .launch import Launch
from .operands import check_slots

if TYPE_CHECKING:
    import torch

_MAX_COLUMNS = 1024


def write_launch(
    layout: Layout, cache_rows: Any, parts: Sequence[Any], slots: Any, block_size: int, page_stride: int, pages: int
) -> Launch:
    """parts: one or two [tokens, width] of the layout, rows dense; slots int64 [tokens]."""
    first, second = parts[0], parts[-1]
    block = _columns(layout)
    return Launch(
        kernel="cache:write_rows",
        grid=(slots.shape[0], -(-layout.width // block)),
        tensors={"first": first, "second": second, "cache": cache_rows},
        tables={"slots": slots},
        strides={
            "first_token": first.stride(0),
            "second_token": second.stride(0),
            "cache_row": cache_rows.stride(0),
        },
        numbers={"page_stride": page_stride, "num_slots": pages * block_size},
        constants={"PAGE": block_size, "FIRST": layout.widths[0], "SECOND": _second(layout), "BLOCK": block},
        num_warps=4,
    )


def read_launch(layout: Layout, cache_rows: Any, rows: Any, parts: Sequence[Any]) -> Launch:
    """parts: one or two dense [rows, ...] to fill; rows int32."""
    block = _columns(layout)
    return Launch(
        kernel="cache:read_rows",
        grid=(rows.shape[0], -(-layout.width // block)),
        tensors={"cache": cache_rows, "first": parts[0], "second": parts[-1]},
        tables={"rows": rows},
        strides={"cache_row": cache_rows.stride(0)},
        numbers={"num_rows": cache_rows.shape[0]},
        constants={"FIRST": layout.widths[0], "SECOND": _second(layout), "BLOCK": block},
        num_warps=4,
    )


def write_rows(run: Callable[[Launch], None], cache: KVCache, slots: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """The parts, written at their slots; LayoutError, with nothing written, where they do not fit the layout."""
    layout = cache.layout
    _check_layout(layout)
    layout.check_parts([tuple(part.shape[1:]) for part in parts])
    check_slots(slots)
    tokens = slots.shape[0]
    for part in parts:
        if part.shape[0] == tokens and part.is_floating_point():
            continue
        raise LayoutError(
            f"{tokens} slots for parts of {[part.shape[0] for part in parts]} tokens, {[str(part.dtype) for part in parts]}; "
            "one slot each, and floats"
        )
    if not tokens:
        return
    flat = [dense_rows(part.reshape(tokens, -1)) for part in parts]
    run(write_launch(layout, cache.rows, flat, slots.contiguous(), cache.block_size, cache.page_stride, cache.num_pages))


def read_rows(run: Callable[[Launch], None], cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parts [rows, *part] at some rows; row -1 gives zeros and reads nothing."""
    _check_layout(cache.layout)
    rows = dense_numbers("rows", rows)
    parts = tuple(cache.storage.new_empty((rows.shape[0], *part)) for part in cache.layout.parts)
    run(read_launch(cache.layout, cache.rows, rows, parts))
    return parts


def _check_layout(layout: Layout) -> None:
    if layout.name not in UNQUANTISED or len(layout.parts) > 2:
        raise LayoutError(f"these kernels read and write the layouts {', '.join(UNQUANTISED)}, not {layout.name!r}")


def _second(layout: Layout) -> int:
    return layout.widths[1] if len(layout.widths) > 1 else 0


def _columns(layout: Layout) -> int:
    return min(_MAX_COLUMNS, 1 << (max(layout.width, 1) - 1).bit_length())
