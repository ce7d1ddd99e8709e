"""What kernels are told of a cache: its bytes or elements, and by which constants they find and read what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as remember
from typing import TYPE_CHECKING, Any

from hal.common.contract.layouts import Layout
from hal.common.contract.layouts.row_layout import record_pieces

if TYPE_CHECKING:
    from hal.common.contract.cache import KVCache

FP8_KINDS = {"e4m3fn": 1, "e4m3fnuz": 2}
# What hal.common.triton.kernels calls the places of scales.
NO_SCALES, ONE_SCALE, PART_SCALES, HEAD_SCALES, RECORD_SCALES, BYTE_SCALES = range(6)
_SCALE_BYTES = 4
# The layouts whose row is one key, and its first part the value.
LATENTS = ("latent", "latent_fp8", "fp8_ds_mla")
# How attention reads keys of the queries' own type.
AS_THEY_ARE = {"FP8": 0, "SCALES": NO_SCALES, "SHARE": 0, "SCALE_AT": 0, "PLAIN_AT": 0, "IS_ALIGNED": True}
# Where the pieces of rows that are no records are.
PLAIN_RECORDS = {
    **dict.fromkeys(("PIECE", "SCALE_AT", "SCALE_ROW", "PLAIN_AT", "TILE_TOKENS", "TILE_BYTES"), 0),
    "IS_ALIGNED": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A cache as kernels take it.

    rows: [rows, width] elements, bytes where they are quantised; of a layout with planes, the first plane's bytes, page by page.
    row: elements from a row to the next, or from a page to the next. scales: fp32, those that lie outside.
    """

    layout: Layout
    rows: Any
    row: int
    block_size: int
    page_stride: int
    pages: int
    scales: Any = None

    @property
    def fp8(self) -> int:
        """The number of the encoding, 0 where elements are plain."""
        return 0 if self.layout.fp8 is None else FP8_KINDS[self.layout.fp8]

    @property
    def num_slots(self) -> int:
        """How many tokens the cache holds."""
        return self.pages * self.block_size

    @property
    def num_rows(self) -> int:
        """The numbers that rows may have: all below this, but those behind a page's tokens where the layout has planes."""
        return self.rows.shape[0] if self.layout.is_flat else self.pages * self.page_stride

    @property
    def scale_kind(self) -> int:
        """Where the scales are, and how many there are of them."""
        if self.layout.blocks is not None:
            return BYTE_SCALES if self.layout.blocks.scale_format == "ue8m0" else RECORD_SCALES
        if self.scales is None:
            return NO_SCALES
        if len(self.scales.shape) == 2:
            return HEAD_SCALES
        return ONE_SCALE if self.scales.shape[0] == 1 else PART_SCALES

    @property
    def is_aligned(self) -> bool:
        """Whether scales and bf16 lanes of records lie at addresses that are multiples of their size."""
        return self.rows.data_ptr() % 4 == 0 and self.row % 4 == 0 and _is_aligned(self.layout, self.block_size)

    def read_constants(self) -> dict[str, int | bool]:
        """How attention reads a row: its encoding, and where its scales and plain lanes are."""
        blocks = self.layout.blocks
        places = PLAIN_RECORDS if blocks is None else _record_constants(self.layout, self.block_size)
        return {
            "FP8": self.fp8,
            "SCALES": self.scale_kind,
            "SHARE": 0 if blocks is None else blocks.block,
            "SCALE_AT": places["SCALE_AT"],
            "PLAIN_AT": places["PLAIN_AT"],
            "IS_ALIGNED": blocks is None or self.is_aligned,
        }

    def mixed_constants(self) -> dict[str, int]:
        """How a row is read that is a value as a whole, with bytes and plain lanes in it; zeros where a row is none such."""
        blocks = self.layout.blocks
        if blocks is None or self.scale_kind != BYTE_SCALES:
            return dict.fromkeys(("LANES", "PIECE", "SCALE_ROW", "PAGE"), 0)
        places = _record_constants(self.layout, self.block_size)
        return {
            "LANES": blocks.lanes,
            "PIECE": places["PIECE"],
            "SCALE_ROW": places["SCALE_ROW"],
            "PAGE": self.block_size,
        }

    def record_constants(self) -> dict[str, int | bool]:
        """Where a record's pieces are, as every kernel that reads records calls it."""
        return {**_record_constants(self.layout, self.block_size), "IS_ALIGNED": self.is_aligned}


def store_of(cache: KVCache) -> Stored:
    """A cache as kernels take it."""
    from hal.common.contract.records import as_bytes

    layout = cache.layout
    rows = as_bytes(cache.rows) if layout.is_flat else cache.planes[0]
    return Stored(
        layout=layout,
        rows=rows,
        row=rows.stride(0),
        block_size=cache.block_size,
        page_stride=cache.page_stride,
        pages=cache.num_pages,
        # A scale is read by its number.
        scales=None if cache.scale is None else cache.scale.contiguous(),
    )


@remember
def _record_constants(layout: Layout, block_size: int) -> dict[str, int | bool]:
    blocks = layout.blocks
    if blocks is None:
        raise TypeError(f"layout {layout.name!r} keeps no records")
    _, scales, plain = record_pieces(layout)
    piece, tile = 0 if layout.is_flat else layout.planes[0], layout.tile or (0, 0)
    return {
        "PIECE": piece,
        "SCALE_AT": block_size * piece if piece else scales.start,
        "SCALE_ROW": layout.planes[1] if piece else 0,
        "PLAIN_AT": plain.start,
        "TILE_TOKENS": tile[0],
        "TILE_BYTES": tile[1],
    }


@remember
def _is_aligned(layout: Layout, block_size: int) -> bool:
    if layout.blocks is None:
        return True
    places = _record_constants(layout, block_size)
    wide = (places["SCALE_AT"], places["SCALE_ROW"])
    has_plain = sum(layout.widths) > layout.blocks.lanes
    return not any(place % _SCALE_BYTES for place in wide) and not (has_plain and (places["PLAIN_AT"] | places["PIECE"]) % 2)
