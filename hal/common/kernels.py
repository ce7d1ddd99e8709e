"""What kernel calls take: caches, paged batches, index segments and chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .errors import LayoutError
from .layouts import Layout

if TYPE_CHECKING:
    import torch

    from .compressor import Compressor


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's cache: the engine's storage and how to read it. Scales kept outside the storage travel in `scale`.

    storage: [pages, rows_per_page, width] in the layout's dtype, last dimension dense; a page's first block_size rows are
    its tokens. A row is an index into .rows: page * page_stride + offset, page_stride being rows_per_page unless pages lie
    further apart in the engine's memory.
    """

    storage: torch.Tensor
    layout: Layout
    block_size: int
    rows_per_page: int
    scale: torch.Tensor | None = None
    page_stride: int = field(init=False, compare=False)
    rows: torch.Tensor = field(init=False, repr=False, compare=False)
    parts: tuple[torch.Tensor, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape = tuple(self.storage.shape)
        if len(shape) != 3 or shape[1:] != (self.rows_per_page, self.layout.width):
            raise LayoutError(
                f"cache storage has shape {list(shape)}; layout {self.layout.name!r} needs "
                f"[pages, {self.rows_per_page}, {self.layout.width}]"
            )
        if not 1 <= self.block_size <= self.rows_per_page:
            raise LayoutError(f"block_size {self.block_size} does not fit in {self.rows_per_page} rows per page")
        dtype = str(self.storage.dtype).removeprefix("torch.")
        if dtype != self.layout.dtype:
            raise LayoutError(f"cache storage is {dtype}; layout {self.layout.name!r} was made for {self.layout.dtype}")
        page, row, element = self.storage.stride()
        starts_on_rows = row >= self.layout.width and page % row == 0 and page >= row * self.rows_per_page
        if self.num_pages and self.layout.width and (element != 1 or not starts_on_rows):
            raise LayoutError(
                f"cache storage has strides {self.storage.stride()}; elements must be dense, rows at least {self.layout.width} "
                f"apart and pages a whole number of rows apart, at least {self.rows_per_page}"
            )
        self._see_as_rows()

    @property
    def num_pages(self) -> int:
        """Pages in the storage."""
        return self.storage.shape[0]

    def _see_as_rows(self) -> None:
        """Set page_stride, the rows from page to page, rows, the storage as one list of them, and parts, views of those."""
        page, row, _ = self.storage.stride()
        stride = page // row if self.num_pages and row else self.rows_per_page
        count = (self.num_pages - 1) * stride + self.rows_per_page if self.num_pages else 0
        flat = self.storage.as_strided((count, self.layout.width), (row, 1), self.storage.storage_offset())
        object.__setattr__(self, "page_stride", stride)
        object.__setattr__(self, "rows", flat)
        object.__setattr__(self, "parts", self.layout.unpack(flat))


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """What a paged call needs of a batch; anyone can make one.

    query_start_loc: int32 [requests + 1], from 0; query rows past its last entry belong to no request and see no key.
    seq_lens: int32 [requests], new tokens included: a request's last query is its last position. block_table: int32
    [requests, pages]. max_query_len and max_seq_len are upper bounds. The first num_decodes requests are short queries.
    key_starts, key_stops: int32 [tokens], the keys key_starts <= key < key_stops that each query may see in place of any
    causality, window or chunk (a missing start is 0); honoured by backends that declare dcp.
    memo: what a backend works out of the batch and keeps for a step's other layers; only the builder gives one, since it
    never changes the tensors behind a batch that is in use.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    max_seq_len: int
    num_decodes: int = 0
    memo: dict[object, object] | None = field(default=None, compare=False, repr=False)
    key_starts: torch.Tensor | None = None
    key_stops: torch.Tensor | None = None


class Segment(NamedTuple):
    """One list of cache rows that sparse_mla attends to: rows int32 [tokens, width] compacted, valid int32 [tokens]."""

    cache: KVCache
    rows: torch.Tensor
    valid: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerChunk:
    """A run of query tokens scored together: token positions in the batch's token order, the requests they belong to.

    max_seq_len: the most keys any of them sees, the width of the score matrix.
    """

    token_start: int
    token_stop: int
    request_start: int
    request_stop: int
    max_seq_len: int


class IndexInputs(NamedTuple):
    """What a layer's own indexer made of a step: q [tokens, index_heads, index_dim], k [tokens, index_dim] and weights.

    weights [tokens, index_heads] have all scales folded in: a score is
    sum_h weights_h * relu(q_h . k). Where tokens share a key, k is the compressor that makes it, or keys that are made
    already, of which the row of each group's last token counts.
    """

    q: torch.Tensor
    k: torch.Tensor | Compressor
    weights: torch.Tensor
