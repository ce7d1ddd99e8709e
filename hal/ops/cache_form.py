"""A cache as an operator takes it: the storage, its scale, the layout's description and the page size."""

from __future__ import annotations

from typing import Protocol

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.layouts.parse import parse_layout

Fields = tuple[torch.Tensor, torch.Tensor | None, str, int]


class CacheOperands(Protocol):
    """The operands that a KVCache stands as."""

    @property
    def storage(self) -> torch.Tensor: ...
    @property
    def scale(self) -> torch.Tensor | None: ...
    @property
    def layout(self) -> str: ...
    @property
    def block_size(self) -> int: ...


def flatten_cache(cache: KVCache) -> Fields:
    """The fields of CacheOperands, in their order."""
    return cache.storage, cache.scale, cache.layout.description, cache.block_size


def read_cache(operands: CacheOperands) -> KVCache:
    """The cache that operands stand for; LayoutError where the layout does not fit the storage."""
    return make_cache(operands.storage, operands.scale, operands.layout, operands.block_size)


def make_cache(storage: torch.Tensor, scale: torch.Tensor | None, layout: str, block_size: int) -> KVCache:
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
