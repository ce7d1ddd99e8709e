"""Rows of a cache in any layout, read and written as they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .cache import KVCache
    from .layouts import Layout


def read_records(cache: KVCache, rows: torch.Tensor) -> torch.Tensor:
    """What is stored at some rows [n], each a cached token's: [n, width] in the layout's dtype, planes end to end."""
    if cache.layout.is_flat:
        return cache.rows.index_select(0, rows)
    # Row numbers times a page's bytes may pass 2**31.
    rows = rows.long()
    page, offset = rows // cache.page_stride, rows % cache.page_stride
    return torch.cat([_read_plane(cache, number, page, offset) for number in range(len(cache.planes))], dim=1)


def write_records(cache: KVCache, rows: torch.Tensor, records: torch.Tensor) -> None:
    """Store records [n, width] at rows int64 [n], each a cached token's."""
    if cache.layout.is_flat:
        as_bytes(cache.rows).index_copy_(0, rows, as_bytes(records))
        return
    page, offset = rows // cache.page_stride, rows % cache.page_stride
    for number, piece in enumerate(records.split(cache.layout.planes, dim=1)):
        tiles = _tiles(cache, number)
        if tiles is None:
            cache.planes[number][page, offset] = piece
        else:
            tokens = tiles.shape[3]
            tiles[page, offset // tokens, :, offset % tokens] = piece.unflatten(1, (tiles.shape[2], tiles.shape[4]))


def zero_records(layout: Layout, count: int, device: torch.device) -> torch.Tensor:
    """Records whose bytes are zero, as an untouched cache holds: they unpack to zeros."""
    return torch.zeros(count, layout.width, dtype=getattr(torch, layout.dtype), device=device)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of one-byte elements as uint8, which more operators take; any other as it is."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def allocate_pages(layout: Layout, num_pages: int, block_size: int, device: str | torch.device) -> torch.Tensor:
    """Zero-filled storage [pages, block_size, width], pages as far apart as the layout's padding asks for."""
    dtype: torch.dtype = getattr(torch, layout.dtype)
    elements = layout.page_bytes(block_size) // dtype.itemsize
    pages = torch.zeros(num_pages, elements, dtype=dtype, device=device)
    return pages.as_strided((num_pages, block_size, layout.width), (elements, layout.width, 1))


def _read_plane(cache: KVCache, number: int, page: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    tiles = _tiles(cache, number)
    if tiles is None:
        return cache.planes[number][page, offset]
    tokens = tiles.shape[3]
    return tiles[page, offset // tokens, :, offset % tokens].flatten(1)


def _tiles(cache: KVCache, number: int) -> torch.Tensor | None:
    """The first plane of a tiled layout as [pages, groups of tokens, tiles in a record, tokens, bytes]; None for any other."""
    if cache.layout.tile is None or number:
        return None
    tokens, piece = cache.layout.tile
    plane = cache.planes[0]
    pages, block_size, width = plane.shape
    shape = (pages, block_size // tokens, width // piece, tokens, piece)
    strides = (plane.stride(0), tokens * width, tokens * piece, piece, 1)
    return plane.as_strided(shape, strides, plane.storage_offset())
