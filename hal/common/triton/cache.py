"""Launches that write rows of a cache and read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hal.common.contract.call_values import KVCache
from hal.common.contract.dense import dense_numbers, dense_rows
from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts import Layout

from .codes import read_codes_launch, write_codes_launch
from .columns import column_tiles, columns_at_once, part_constants
from .launch import Launch
from .operands import check_slots
from .records import read_records_launch, write_records_launch
from .stored import Stored, store_of

if TYPE_CHECKING:
    import torch

READ_AND_WRITTEN = ("kv", "latent", "indexer", "kv_fp8", "latent_fp8", "fp8_ds_mla", "indexer_fp8", "compressed")


def write_launch(stored: Stored, parts: Sequence[Any], slots: Any) -> Launch:
    """parts: one or two [tokens, width] of the layout, rows dense, none of them empty; slots int64 [tokens]."""
    if stored.layout.blocks is not None:
        return write_records_launch(stored, parts, slots)
    if stored.layout.fp8 is not None:
        return write_codes_launch(stored, parts, slots)
    first, second = parts[0], parts[-1]
    return Launch(
        kernel="cache:write_rows",
        grid=(slots.shape[0], column_tiles(stored.layout)),
        tensors={"first": first, "second": second, "cache": stored.rows},
        tables={"slots": slots},
        strides={"first_token": first.stride(0), "second_token": second.stride(0), "cache_row": stored.row},
        numbers={"page_stride": stored.page_stride, "num_slots": stored.num_slots},
        constants={"PAGE": stored.block_size, **part_constants(stored.layout), "BLOCK": columns_at_once(stored.layout)},
        num_warps=4,
    )


def read_launch(stored: Stored, rows: Any, parts: Sequence[Any]) -> Launch:
    """parts: one or two dense [rows, ...] to fill, fp32 where they are quantised, none of them empty; rows int32."""
    if stored.layout.blocks is not None:
        return read_records_launch(stored, rows, parts)
    if stored.layout.fp8 is not None:
        return read_codes_launch(stored, rows, parts)
    return Launch(
        kernel="cache:read_rows",
        grid=(rows.shape[0], column_tiles(stored.layout)),
        tensors={"cache": stored.rows, "first": parts[0], "second": parts[-1]},
        tables={"rows": rows},
        strides={"cache_row": stored.row},
        numbers={"num_rows": stored.num_rows},
        constants={**part_constants(stored.layout), "BLOCK": columns_at_once(stored.layout)},
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
    flat = [dense_rows(part.reshape(tokens, -1)) for part in filled(layout, parts)]
    run(write_launch(store_of(cache), flat, slots.contiguous()))


def read_rows(run: Callable[[Launch], None], cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parts [rows, *part] at some rows, fp32 where they are quantised; row -1 gives zeros and reads nothing."""
    import torch

    layout = cache.layout
    _check_layout(layout)
    rows = dense_numbers("rows", rows)
    dtype = torch.float32 if layout.is_quantised else cache.storage.dtype
    parts = tuple(cache.storage.new_empty((rows.shape[0], *part), dtype=dtype) for part in layout.parts)
    run(read_launch(store_of(cache), rows, filled(layout, parts)))
    return parts


def filled(layout: Layout, parts: Sequence[Any]) -> list[Any]:
    """Those of a row's parts that have elements, as a rotary part of no width has none."""
    return [part for part, width in zip(parts, layout.widths, strict=True) if width]


def _check_layout(layout: Layout) -> None:
    if layout.name not in READ_AND_WRITTEN or len(layout.parts) > 2:
        raise LayoutError(f"these kernels read and write the layouts {', '.join(READ_AND_WRITTEN)}, not {layout.name!r}")
