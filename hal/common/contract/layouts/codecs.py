"""Packing parts into rows and unpacking them, by what a layout says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from hal.common.contract.errors import LayoutError

from .fp8 import SCALING_MAX, storage_dtype
from .row_layout import record_pieces

if TYPE_CHECKING:
    from .row_layout import BlockScaling, RowLayout

_EXPONENT_BIAS = 127
_NAN_CODE = {"e4m3fn": 0x7F, "e4m3fnuz": 0x80}
_FEW_ELEMENTS = 4096
_SMALLEST_NORMAL = 2.0**-126
# 255 is NaN; no finite value needs a scale beyond 2**120.
_LARGEST_SCALE_BYTE = 254


def pack(layout: RowLayout, parts: Sequence[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
    """Rows [tokens, width] of parts that were checked."""
    if layout.fp8 is not None and scale is not None:
        parts = [part.float() / factor for part, factor in zip(parts, part_scales(layout, scale), strict=True)]
    flat = [part.reshape(part.shape[0], width) for part, width in zip(parts, layout.widths, strict=True)]
    values = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
    if layout.blocks is not None:
        return _pack_blocks(layout, layout.blocks, values.float())
    if layout.fp8 is not None:
        return encode(values, layout.fp8)
    return values.to(getattr(torch, layout.dtype))


def unpack(layout: RowLayout, rows: torch.Tensor, scale: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """fp32 parts of quantised rows [tokens, width]."""
    if layout.blocks is None:
        parts = layout.split(decode(rows))
        if scale is None:
            return parts
        return tuple(part * factor for part, factor in zip(parts, part_scales(layout, scale), strict=True))
    values = _unpack_blocks(layout, layout.blocks, rows)
    pieces = values.split(layout.widths, dim=1)
    return tuple(piece.unflatten(1, part) for piece, part in zip(pieces, layout.parts, strict=True))


def part_scales(layout: RowLayout, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One factor per part that broadcasts over [tokens, *part], from scales of one of the layout's scale_shapes.

    A first dimension of as many scales as there are parts gives each its own; a second one gives each head its own.
    """
    if scale.numel() == 1:
        return (scale.reshape(()),) * len(layout.parts)
    return tuple(part.unsqueeze(-1) if part.dim() else part for part in scale.unbind(0))


def encode(values: torch.Tensor, fp8: str) -> torch.Tensor:
    """fp8 elements, rounded to nearest even, saturated at the largest magnitude that scaling aims at; NaN stays NaN."""
    largest = SCALING_MAX[fp8]
    codes = values.clamp(-largest, largest).to(getattr(torch, storage_dtype(fp8)))
    # The sign of a NaN depends on the processor, and e4m3fn would keep it.
    codes.view(torch.uint8).masked_fill_(values.isnan(), _NAN_CODE[fp8])
    return codes


def decode(elements: torch.Tensor) -> torch.Tensor:
    """fp32 values of fp8 elements."""
    if elements.device.type != "cpu" or elements.numel() < _FEW_ELEMENTS:
        return elements.float()
    # Processors convert fp8 one element at a time; looking 256 values up is several times quicker.
    table = torch.arange(256, dtype=torch.uint8).view(elements.dtype).float()
    return table.index_select(0, elements.view(torch.uint8).reshape(-1).int()).view(elements.shape)


def _pack_blocks(layout: RowLayout, blocks: BlockScaling, values: torch.Tensor) -> torch.Tensor:
    fp8 = _variant(layout)
    where_values, where_scales, where_plain = record_pieces(layout)
    quantised, plain = values[:, : blocks.lanes], values[:, blocks.lanes :]
    if blocks.rounds_to_bf16:
        quantised = quantised.bfloat16().float()
    records = values.new_zeros(values.shape[0], layout.width, dtype=torch.uint8)
    for number, lanes in enumerate(_block_slices(blocks)):
        block = quantised[:, lanes]
        scale = _find_scale(block, blocks, SCALING_MAX[fp8])
        records[:, where_values][:, lanes] = encode(block / scale, fp8).view(torch.uint8)
        size = (where_scales.stop - where_scales.start) // blocks.num_blocks
        begin = where_scales.start + number * size
        records[:, begin : begin + size] = _store_scale(scale, blocks)
    records[:, where_plain] = _as_bytes(plain.bfloat16())
    return records


def _unpack_blocks(layout: RowLayout, blocks: BlockScaling, records: torch.Tensor) -> torch.Tensor:
    where_values, where_scales, where_plain = record_pieces(layout)
    dtype = getattr(torch, storage_dtype(_variant(layout)))
    values = decode(records[:, where_values].view(dtype))
    scales = load_scales(records[:, where_scales], blocks)
    for number, lanes in enumerate(_block_slices(blocks)):
        values[:, lanes] *= scales[:, number : number + 1]
    if where_plain.start == where_plain.stop:
        return values
    return torch.cat([values, _reinterpret(records[:, where_plain], torch.bfloat16).float()], dim=1)


def load_scales(stored: torch.Tensor, blocks: BlockScaling) -> torch.Tensor:
    """fp32 scales [tokens, num_blocks] from their bytes in the records; byte 255 of ue8m0 is NaN."""
    if blocks.scale_format != "ue8m0":
        return _reinterpret(stored, torch.float32)
    scales = torch.pow(2.0, stored.double() - _EXPONENT_BIAS).float()
    return scales.masked_fill_(stored > _LARGEST_SCALE_BYTE, torch.nan)


def _find_scale(block: torch.Tensor, blocks: BlockScaling, largest: float) -> torch.Tensor:
    """fp32 [tokens, 1]: what brings a block's largest finite magnitude to the largest that fp8 is scaled to."""
    magnitudes = torch.where(block.isfinite(), block, 0).abs()
    # A block of zeros is divided by something, too: by the smallest normal number where its layout has no greater floor.
    scale = (magnitudes.amax(1, keepdim=True).clamp(min=blocks.amax_floor) / largest).clamp(min=_SMALLEST_NORMAL)
    if blocks.scale_format == "float32":
        return scale
    mantissa, exponent = torch.frexp(scale)
    # frexp's mantissa is 0.5 exactly where the scale is a power of two already.
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.pow(2.0, exponent.double()).float()


def _store_scale(scale: torch.Tensor, blocks: BlockScaling) -> torch.Tensor:
    if blocks.scale_format != "ue8m0":
        return _as_bytes(scale)
    exponent = torch.frexp(scale).exponent - 1
    return (exponent + _EXPONENT_BIAS).clamp(0, _LARGEST_SCALE_BYTE).to(torch.uint8)


def _block_slices(blocks: BlockScaling) -> Iterator[slice]:
    edges = [*range(0, blocks.lanes, blocks.block), blocks.lanes]
    return (slice(begin, end) for begin, end in pairwise(edges))


def _as_bytes(elements: torch.Tensor) -> torch.Tensor:
    """The bytes of elements [tokens, n]; a copy, since contiguous() keeps strides that it has no use for and view() has."""
    return elements.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _reinterpret(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The elements that some columns of bytes hold; a copy, since a record need not be aligned to them."""
    if not stored.shape[1]:
        return stored.new_empty(stored.shape, dtype=dtype)
    return stored.clone(memory_format=torch.contiguous_format).view(dtype)


def _variant(layout: RowLayout) -> str:
    if layout.fp8 is None:
        raise LayoutError(f"layout {layout.name!r} holds byte records and names no fp8 variant")
    return layout.fp8
