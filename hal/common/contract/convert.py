"""Moving a cache's pages to another platform's form of the same layout: the other e4m3 variant, other tiles, another stride."""

from __future__ import annotations

from dataclasses import replace

import torch

from .cache import KVCache
from .errors import LayoutError
from .layouts import Layout, change_variant
from .layouts.row_layout import record_pieces
from .records import as_bytes, read_records, write_records

# Bytes of records worked on at once.
_RECORD_BYTES = 64 << 20
_LARGEST_CODE = 0x7E
_NAN = {"e4m3fn": 0x7F, "e4m3fnuz": 0x80}


def convert_cache(source: KVCache, target: KVCache) -> None:
    """Write every page of source into target, whose layout differs in its e4m3 variant, its tiles and its strides at most.

    The same bits mean half as much in e4m3fnuz as in e4m3fn, so codes stay and scales are doubled or halved: nothing is
    rounded but e4m3fnuz codes beyond 224, which no packing makes and which saturate. Scales kept outside the rows are
    written into target.scale. LayoutError, with nothing written, for caches that do not go together.
    """
    _check(source, target)
    factor = _scale_factor(source.layout, target.layout)
    if source.scale is not None and target.scale is not None:
        target.scale.copy_(source.scale * factor)
    size = source.block_size
    step = max(1, _RECORD_BYTES // (size * source.layout.width))
    offsets = torch.arange(size, device=source.storage.device)
    for first in range(0, source.num_pages, step):
        pages = torch.arange(first, min(first + step, source.num_pages), device=offsets.device)[:, None]
        records = read_records(source, (pages * source.page_stride + offsets).reshape(-1))
        converted = convert_records(records, source.layout, target.layout)
        rows = (pages * target.page_stride + offsets).reshape(-1)
        write_records(target, rows.to(target.storage.device), converted.to(target.storage.device))


def convert_records(records: torch.Tensor, source: Layout, target: Layout) -> torch.Tensor:
    """Records [n, width] of one layout as records of its other variant; scales kept outside them are the caller's to adapt."""
    if source.fp8 is None or target.fp8 is None or source.fp8 == target.fp8:
        return records
    dtype: torch.dtype = getattr(torch, target.dtype)
    converted = as_bytes(records).clone()
    if source.blocks is None:
        return _convert_codes(converted, source.fp8, target.fp8).view(dtype)
    values, scales, _ = record_pieces(source)
    converted[:, values] = _convert_codes(converted[:, values], source.fp8, target.fp8)
    factor = _scale_factor(source, target)
    if source.blocks.scale_format == "ue8m0":
        # 255 is NaN and stays it; 254 is doubled to it, since the range ends there.
        exponents = converted[:, scales].int()
        moved = (exponents + (1 if factor > 1 else -1)).clamp(0, 255)
        converted[:, scales] = torch.where(exponents == 255, exponents, moved).to(torch.uint8)
        return converted
    stored = converted[:, scales].clone(memory_format=torch.contiguous_format).view(torch.float32)
    converted[:, scales] = (stored * factor).view(torch.uint8)
    return converted


def _convert_codes(codes: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """Codes of half or twice the value: the same bits, but for NaN, for -0, which e4m3fnuz lacks, and for magnitudes above."""
    magnitude = codes & 0x7F
    if source == "e4m3fn":
        is_nan = magnitude == 0x7F
        moved = torch.where(magnitude == 0, magnitude, codes)
    else:
        is_nan = codes == 0x80
        moved = torch.where(magnitude > _LARGEST_CODE, codes - 1, codes)
    return moved.masked_fill(is_nan, _NAN[target])


def _scale_factor(source: Layout, target: Layout) -> float:
    if source.fp8 == target.fp8:
        return 1.0
    return 2.0 if source.fp8 == "e4m3fn" else 0.5


def _check(source: KVCache, target: KVCache) -> None:
    here, there = source.layout, target.layout
    plain, wanted = (_without_form(layout) for layout in (here, there))
    if plain != wanted or (source.num_pages, source.block_size) != (target.num_pages, target.block_size):
        raise LayoutError(
            f"{source.num_pages} pages of {source.block_size} tokens of {here.description} cannot become "
            f"{target.num_pages} pages of {target.block_size} tokens of {there.description}; all but the fp8 variant and the "
            "tiles must be equal"
        )
    if (source.scale is None) != (target.scale is None) or (
        source.scale is not None and target.scale is not None and source.scale.shape != target.scale.shape
    ):
        raise LayoutError("the caches' scales have different shapes; both need the same")


def _without_form(layout: Layout) -> Layout:
    return replace(change_variant(layout, "e4m3fn"), tile=None)
