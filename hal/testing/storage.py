"""Storage as bad as the contract allows: NaN wherever nothing was written, pages shuffled, strides wider than pages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hal.common.kernels import KVCache, PagedBatch
from hal.common.layouts import Layout

from .cases import BatchCase

Tables = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCase:
    """Rows between a page's tokens and its end, and rows between pages that belong to others."""

    id: str
    extra_rows: int = 0
    gap_rows: int = 0


TIGHT = StorageCase(id="")
ROOMY = StorageCase(id="roomy_pages", extra_rows=3)
STRIDED = StorageCase(id="strided_pages", extra_rows=2, gap_rows=5)


def make_generator(name: str) -> torch.Generator:
    """A generator whose stream depends on the name alone."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def random_tensor(generator: torch.Generator, *shape: int, dtype: str, scale: float = 1.0) -> torch.Tensor:
    """Normal values, rounded to the dtype."""
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(torch_dtype(dtype))


def torch_dtype(name: str) -> torch.dtype:
    """The torch.dtype of a name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def poisoned(*shape: int, dtype: torch.dtype, device: str | torch.device = "cpu") -> torch.Tensor:
    """A tensor of NaN, for results to be written into."""
    return torch.full(shape, torch.nan, dtype=dtype, device=device)


def poisoned_cache(layout: Layout, num_pages: int, block_size: int, storage: StorageCase = TIGHT) -> KVCache:
    """A cache in which every row is NaN, those outside its pages included."""
    rows_per_page = block_size + storage.extra_rows
    stride_rows = rows_per_page + storage.gap_rows
    buffer = poisoned(num_pages * stride_rows, layout.width, dtype=torch_dtype(layout.dtype))
    return _as_cache(buffer, layout, num_pages, block_size, rows_per_page, stride_rows)


def copy_cache(cache: KVCache, device: str) -> KVCache:
    """The cache with storage of its own on a device, strides and rows between pages included."""
    stride = cache.page_stride
    rows = cache.rows
    buffer = poisoned(cache.num_pages * stride, cache.layout.width, dtype=rows.dtype)
    buffer[: rows.shape[0]] = rows.cpu()
    buffer = buffer.to(device)
    return _as_cache(buffer, cache.layout, cache.num_pages, cache.block_size, cache.rows_per_page, stride)


def _as_cache(
    buffer: torch.Tensor, layout: Layout, num_pages: int, block_size: int, rows_per_page: int, stride_rows: int
) -> KVCache:
    width = layout.width
    strides = (stride_rows * width, width, 1)
    return KVCache(buffer.as_strided((num_pages, rows_per_page, width), strides), layout, block_size, rows_per_page)


def shuffle_pages(generator: torch.Generator, lengths: Sequence[int], block_size: int) -> tuple[Tables, int]:
    """Each request's pages in random order, and the pages there are; page 0 and two more belong to nobody."""
    counts = [-(-length // block_size) for length in lengths]
    pages = (torch.randperm(sum(counts) + 2, generator=generator) + 1).tolist()
    tables = [[pages.pop() for _ in range(count)] for count in counts]
    return tables, sum(counts) + 3


def table_tensor(tables: Tables, padding_columns: int = 2) -> torch.Tensor:
    """int32 [requests, pages] with -1 in the cells that no page fills."""
    width = max((len(table) for table in tables), default=0) + padding_columns
    rows = [table + [-1] * (width - len(table)) for table in tables]
    return torch.tensor(rows, dtype=torch.int32).reshape(len(tables), width)


def fill_cache(cache: KVCache, tables: Tables, lengths: Sequence[int], generator: torch.Generator) -> None:
    """Random values in the rows of the requests' tokens; every other row stays as it is."""
    for table, length in zip(tables, lengths, strict=True):
        for position in range(length):
            page, offset = table[position // cache.block_size], position % cache.block_size
            cache.storage[page, offset] = random_tensor(generator, cache.layout.width, dtype=cache.layout.dtype)


def build_cache(
    layout: Layout, lengths: Sequence[int], block_size: int, generator: torch.Generator, storage: StorageCase = TIGHT
) -> tuple[KVCache, torch.Tensor]:
    """A cache that holds requests of these lengths and nothing else, and their block table."""
    tables, num_pages = shuffle_pages(generator, lengths, block_size)
    cache = poisoned_cache(layout, num_pages, block_size, storage)
    fill_cache(cache, tables, lengths, generator)
    return cache, table_tensor(tables)


def paged_batch(batch: BatchCase, block_table: torch.Tensor, device: str = "cpu") -> PagedBatch:
    """What a paged call needs of a batch, on a device."""
    return PagedBatch(
        query_start_loc=batch.query_start_loc.to(device),
        seq_lens=torch.tensor(batch.seq_lens, dtype=torch.int32).to(device),
        block_table=block_table.to(device),
        max_query_len=batch.max_query_len,
        max_seq_len=batch.max_seq_len,
        num_decodes=batch.num_decodes,
    )
