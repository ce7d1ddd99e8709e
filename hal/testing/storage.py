"""Storage as bad as the contract allows: NaN wherever nothing was written, pages shuffled, strides wider than pages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.layouts import Layout
from hal.config.sizes import page_bytes

from . import reference
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


def poisoned_cache(
    layout: Layout, num_pages: int, block_size: int, storage: StorageCase = TIGHT, scale: torch.Tensor | None = None
) -> KVCache:
    """A cache in which every byte belongs to a NaN, those outside its pages included; scales kept outside are ones."""
    rows_per_page = block_size + storage.extra_rows
    page = page_bytes(layout.width, rows_per_page + storage.gap_rows, layout.page_alignment)
    buffer = poisoned_elements(num_pages * page, torch_dtype(layout.dtype))
    if scale is None and layout.scale_shapes:
        scale = torch.ones(layout.scale_shapes[0])
    strides = (page, layout.width, 1)
    return KVCache(buffer.as_strided((num_pages, rows_per_page, layout.width), strides), layout, block_size, rows_per_page, scale)


def poisoned_elements(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements that are NaN, whatever is read from them: bytes of 255 where they hold other types."""
    return torch.full((count,), 255 if dtype is torch.uint8 else torch.nan, dtype=dtype)


def stored_elements(cache: KVCache) -> torch.Tensor:
    """Every element from the first page's start to the last one's end, what lies between pages included."""
    page, row, _ = cache.storage.stride()
    count = (cache.num_pages - 1) * page + (cache.rows_per_page - 1) * row + cache.layout.width if cache.num_pages else 0
    return cache.storage.as_strided((max(count, 0),), (1,), cache.storage.storage_offset())


def copy_cache(cache: KVCache, device: str) -> KVCache:
    """The cache with storage of its own on a device, strides and rows between pages included."""
    page, row, _ = cache.storage.stride()
    elements = stored_elements(cache)
    buffer = poisoned_elements(max(cache.num_pages * page, elements.numel()), elements.dtype)
    buffer[: elements.numel()] = elements.cpu()
    storage = buffer.to(device).as_strided(tuple(cache.storage.shape), (page, row, 1))
    scale = None if cache.scale is None else cache.scale.to(device)
    return KVCache(storage, cache.layout, cache.block_size, cache.rows_per_page, scale)


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
    layout = cache.layout
    for table, length in zip(tables, lengths, strict=True):
        pages, offsets = [table[i // cache.block_size] for i in range(length)], [i % cache.block_size for i in range(length)]
        if not layout.is_quantised:
            cache.storage[pages, offsets] = random_tensor(generator, length, layout.width, dtype=layout.dtype)
            continue
        for page, offset in zip(pages, offsets, strict=True):
            parts = [random_tensor(generator, *part, dtype="float32") for part in layout.parts]
            reference.write_token(cache, page, offset, parts)


def random_scale(layout: Layout, generator: torch.Generator) -> torch.Tensor | None:
    """Scales of the finest shape that the layout takes outside its rows, some of them no powers of two; None for none."""
    if not layout.scale_shapes:
        return None
    return torch.rand(layout.scale_shapes[-1], generator=generator) * 0.03 + 0.01


def build_cache(
    layout: Layout, lengths: Sequence[int], block_size: int, generator: torch.Generator, storage: StorageCase = TIGHT
) -> tuple[KVCache, torch.Tensor]:
    """A cache that holds requests of these lengths and nothing else, and their block table."""
    tables, num_pages = shuffle_pages(generator, lengths, block_size)
    cache = poisoned_cache(layout, num_pages, block_size, storage, random_scale(layout, generator))
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
