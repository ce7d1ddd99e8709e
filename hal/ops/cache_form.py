"""A cache as an operator takes it: the storage, its scale, the layout's description and the page size."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.layouts.parse import parse_layout

CACHE = "Tensor storage, Tensor? scale, str layout, SymInt block_size"
"""How a KVCache stands in a schema."""


def read_cache(storage: torch.Tensor, scale: torch.Tensor | None, layout: str, block_size: int) -> KVCache:
    """The cache of a storage [pages, rows_per_page, width]; LayoutError where the layout does not fit it."""
    rows_per_page = storage.shape[1] if storage.ndim == 3 else block_size
    return KVCache(storage, parse_layout(layout), block_size, rows_per_page, scale)


def value_width(layout: str) -> int:
    """Elements of one head's value: the last part's where a token has heads, else the first part's."""
    parts = parse_layout(layout).parts
    return parts[-1][-1] if len(parts[-1]) > 1 else parts[0][0]


def part_dtype(layout: str, storage: torch.Tensor) -> torch.dtype:
    """The type of a cache's parts when they are read: the storage's, and fp32 where it holds them quantised."""
    return torch.float32 if parse_layout(layout).is_quantised else storage.dtype
