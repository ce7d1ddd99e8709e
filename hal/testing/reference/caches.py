"""Rows of a cache: where they are, what they hold, how they get there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.errors import BatchError

from .encoding import decode_token, encode_token


def locate_row(cache: KVCache, row: int) -> tuple[int, int]:
    """Page and offset of a row: every page starts page_stride rows after the last."""
    return divmod(row, cache.page_stride)


def has_row(cache: KVCache, row: int) -> bool:
    """Whether a number is that of a row: -1 is none, and none lies past the last page."""
    page, offset = locate_row(cache, row)
    return 0 <= page < cache.num_pages and offset < cache.rows_per_page


def read_parts(cache: KVCache, page: int, offset: int) -> tuple[torch.Tensor, ...]:
    """The parts of one cached token in float64, decoded where they are quantised."""
    return tuple(part[0] for part in read_tokens(cache, [(page, offset)]))


def read_tokens(cache: KVCache, places: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
    """The parts [n, *part] of the tokens at these pages and offsets in float64, decoded where they are quantised."""
    layout = cache.layout
    if not layout.is_quantised:
        pages, offsets = [page for page, _ in places], [offset for _, offset in places]
        pieces = cache.storage[pages, offsets].double().split(layout.widths, dim=1)
        return tuple(piece.reshape(len(places), *shape) for piece, shape in zip(pieces, layout.parts, strict=True))
    records = [bytes(_page_bytes(cache, page)[_token_bytes(cache, offset)].tolist()) for page, offset in places]
    tokens = [decode_token(layout, record, cache.scale) for record in records]
    return tuple(torch.stack(pieces) for pieces in zip(*tokens, strict=True))


def gather_rows(cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parts [n, *part] at rows [n] in float64; zeros for numbers that are no row, as -1."""
    parts = tuple(torch.zeros(rows.numel(), *shape).double() for shape in cache.layout.parts)
    return _fill(parts, cache, {index: locate_row(cache, row) for index, row in enumerate(rows.tolist()) if has_row(cache, row)})


def write_rows(cache: KVCache, slots: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """The parts, put where slots [tokens] say; slot -1 puts nothing anywhere.

    A slot is page * block_size + offset: it counts tokens, where a row counts unused rows as well.
    """
    cache.layout.check_parts([tuple(part.shape[1:]) for part in parts])
    tokens = slots.numel()
    if any(part.shape[0] != tokens for part in parts):
        raise BatchError(f"{tokens} slots for parts of {[part.shape[0] for part in parts]} tokens; one slot each")
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        page, offset = divmod(slot, cache.block_size)
        write_token(cache, page, offset, [part[token] for part in parts])


def write_token(cache: KVCache, page: int, offset: int, parts: Sequence[torch.Tensor]) -> None:
    """One token's parts, put into a page."""
    if cache.layout.is_quantised:
        record = encode_token(cache.layout, parts, cache.scale)
        _page_bytes(cache, page)[_token_bytes(cache, offset)] = torch.tensor(list(record), dtype=torch.uint8)
        return
    row = torch.cat([part.flatten() for part in parts])
    cache.storage[page, offset] = row.to(cache.storage.dtype)


def read_request(cache: KVCache, block_table: Sequence[int], seq_len: int) -> tuple[torch.Tensor, ...]:
    """The parts [seq_len, *part] of a request's tokens, in order, by its row of the block table.

    Tokens on a page that the table does not name (-1: freed behind a window) come out as NaN.
    """
    parts = tuple(torch.full((seq_len, *shape), torch.nan).double() for shape in cache.layout.parts)
    pages = [block_table[position // cache.block_size] for position in range(seq_len)]
    return _fill(
        parts, cache, {position: (page, position % cache.block_size) for position, page in enumerate(pages) if page >= 0}
    )


def _fill(parts: tuple[torch.Tensor, ...], cache: KVCache, places: dict[int, tuple[int, int]]) -> tuple[torch.Tensor, ...]:
    """The parts, with what the cache holds at a page and offset under each index."""
    if places:
        for part, pieces in zip(parts, read_tokens(cache, list(places.values())), strict=True):
            part[list(places)] = pieces
    return parts


def _page_bytes(cache: KVCache, page: int) -> torch.Tensor:
    """A page's bytes from its start, as a view."""
    elements = cache.storage.stride(1) * (cache.rows_per_page - 1) + cache.layout.width
    return cache.storage[page].as_strided((elements,), (1,)).view(torch.uint8)


def _token_bytes(cache: KVCache, offset: int) -> torch.Tensor:
    """Where in its page each byte of a token's record is."""
    layout, places, start = cache.layout, [], 0
    if len(layout.planes) == 1:
        start = offset * cache.storage.stride(1)
        return torch.arange(start, start + layout.width)
    for number, piece in enumerate(layout.planes):
        if number == 0 and layout.tile is not None:
            tokens, width = layout.tile
            first = offset // tokens * tokens * piece + offset % tokens * width
            places += [first + byte // width * tokens * width + byte % width for byte in range(piece)]
        else:
            places += range(start + offset * piece, start + (offset + 1) * piece)
        start += cache.block_size * piece
    return torch.tensor(places)
