"""Writing and reading rows of a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.errors import LayoutError
from hal.common.contract.records import as_bytes, read_records, write_records, zero_records

from .checks import check_floats, check_integers

_FEW = 16


def write_rows(cache: KVCache, slots: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """The parts, written at their slots; a slot of -1 writes nothing, one past the cache is a LayoutError before anything is."""
    if slots.dtype is not torch.int64 or slots.dim() != 1:
        check_integers("slots", slots, 1, (torch.int64,))
    cache.layout.check_parts([part.shape[1:] for part in parts])
    for number, part in enumerate(parts):
        if not (part.is_floating_point() and part.is_cpu):
            check_floats(f"part {number}", part, part.dim())
        if part.shape[0] != slots.shape[0]:
            raise LayoutError(f"{part.shape[0]} tokens to write and {slots.shape[0]} slots; they must be as many")
    if not slots.numel():
        return
    # For a few slots a list is quicker than another kernel.
    ends = slots.tolist() if slots.numel() <= _FEW else torch.stack(slots.aminmax()).tolist()
    highest = max(ends)
    if highest >= cache.num_pages * cache.block_size:
        raise LayoutError(
            f"slot {highest} is none of the cache's: {cache.num_pages} pages of {cache.block_size} tokens have slots 0 to "
            f"{cache.num_pages * cache.block_size - 1}"
        )
    if min(ends) < 0:
        keep = slots >= 0
        slots, parts = slots[keep], [part[keep] for part in parts]
    if cache.page_stride != cache.block_size:
        slots = slots // cache.block_size * cache.page_stride + slots % cache.block_size
    if cache.layout.is_quantised:
        write_records(cache, slots, cache.layout.pack(parts, cache.scale))
        return
    for view, part in zip(cache.parts, parts, strict=True):
        view.index_copy_(0, slots, part if part.dtype is view.dtype else part.to(view.dtype))


def gather_rows(cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parts at some rows; a row that the cache does not have, as -1, gives zeros and reads nothing."""
    check_integers("rows", rows, 1)
    absent = find_strangers(cache, rows)
    if bool(absent.all()):
        return cache.layout.unpack(zero_records(cache.layout, rows.shape[0], cache.storage.device), cache.scale)
    gathered = read_records(cache, rows.masked_fill(absent, 0))
    if bool(absent.any()):
        as_bytes(gathered).masked_fill_(absent[:, None], 0)
    return cache.layout.unpack(gathered, cache.scale)


def find_strangers(cache: KVCache, rows: torch.Tensor) -> torch.Tensor:
    """bool like rows: True for the numbers that are no row of the cache's, such as -1."""
    last = cache.rows.shape[0] if cache.layout.is_flat else cache.num_pages * cache.page_stride
    strangers = (rows < 0).logical_or_(rows >= last)
    if not cache.layout.is_flat and cache.page_stride != cache.block_size:
        # Planes end behind their page's tokens.
        strangers.logical_or_(rows % cache.page_stride >= cache.block_size)
    return strangers


def are_rows(cache: KVCache, rows: torch.Tensor) -> bool:
    """Whether the numbers, one at least, are rows of the cache's for certain."""
    if not cache.layout.is_flat:
        return not bool(find_strangers(cache, rows).any())
    lowest, highest = rows.aminmax()
    return int(lowest) >= 0 and int(highest) < cache.rows.shape[0]


def locate_request(cache: KVCache, batch: PagedBatch, request: int, start: int, stop: int) -> slice | torch.Tensor | None:
    """The cache rows of a request's positions start..stop: a slice where its pages lie end to end, else int64 indices.

    None where the table names no page of the cache for one of them: locate_known finds the others.
    """
    size, stride = cache.block_size, cache.page_stride
    first_page = start // size
    last_page = -(-stop // size) if stop > start else first_page
    table = batch.block_table[request, first_page:last_page]
    pages = table.tolist()
    offset = start - first_page * size
    is_run = bool(pages) and pages == list(range(pages[0], pages[0] + len(pages)))
    lowest, highest = (pages[0], pages[-1]) if is_run else (min(pages, default=0), max(pages, default=-1))
    if len(pages) < last_page - first_page or lowest < 0 or highest >= cache.num_pages:
        return None
    if stride == size and is_run:
        begin = pages[0] * size + offset
        return slice(begin, begin + stop - start)
    rows = (table.long()[:, None] * stride + torch.arange(size)[None, :]).reshape(-1)
    return rows[offset : offset + stop - start]


def locate_known(cache: KVCache, batch: PagedBatch, request: int, start: int, stop: int) -> torch.Tensor:
    """The cache row of each of a request's positions start..stop, int64; -1 where the table names no page of the cache."""
    table = batch.block_table[request].long()
    positions = torch.arange(start, stop)
    column = positions // cache.block_size
    page = table[column.clamp(max=table.shape[0] - 1)] if table.shape[0] else torch.full_like(column, -1)
    is_there = (column < table.shape[0]) & (page >= 0) & (page < cache.num_pages)
    return torch.where(is_there, page * cache.page_stride + positions % cache.block_size, -1)


def read_request(
    cache: KVCache, batch: PagedBatch, request: int, start: int, stop: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A request's stored rows [stop - start, width]: a view where they lie end to end, a copy where they do not.

    Beside them bool [stop - start], True for the positions whose page is missing, whose rows are zeros; None where none is.
    """
    rows = locate_request(cache, batch, request, start, stop)
    if rows is not None:
        return read_located(cache, rows), None
    rows = locate_known(cache, batch, request, start, stop)
    is_missing = rows < 0
    if bool(is_missing.all()):
        return zero_records(cache.layout, stop - start, cache.storage.device), is_missing
    stored = read_records(cache, rows.clamp(min=0))
    as_bytes(stored).masked_fill_(is_missing[:, None], 0)
    return stored, is_missing


def read_located(cache: KVCache, rows: slice | torch.Tensor) -> torch.Tensor:
    """The stored rows [n, width] at what locate_request found."""
    if isinstance(rows, torch.Tensor):
        return read_records(cache, rows)
    return cache.rows[rows] if cache.layout.is_flat else read_records(cache, torch.arange(rows.start, rows.stop))
