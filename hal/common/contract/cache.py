"""One layer's cache: storage in pages, and how to see it as rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from .errors import LayoutError
from .layouts import Layout

if TYPE_CHECKING:
    import torch

CacheKey = int | tuple[int, str]
"""A cache's name in a plan: the layer id, or (layer id, part) for index keys."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's cache: the engine's storage and how to read it. Scales kept outside the storage travel in `scale`.

    storage: [pages, rows_per_page, width] in the layout's dtype, last dimension dense; a page's first block_size rows are
    its tokens. A row is a number page * page_stride + offset, page_stride being rows_per_page unless pages of a flat layout
    lie further apart in the engine's memory. Where the layout is flat, `rows` [rows, width] is the storage seen so; where it
    also stores its parts' own elements, `parts` are views of those; elsewhere rows and parts are empty.
    A page whose layout has planes is dense: `planes` are views of them, [pages, block_size, piece], one after the other from
    the page's start, and what follows them up to the next page is padding.
    """

    storage: torch.Tensor
    layout: Layout
    block_size: int
    rows_per_page: int
    scale: torch.Tensor | None = None
    page_stride: int = field(init=False, compare=False)
    rows: torch.Tensor = field(init=False, repr=False, compare=False)
    parts: tuple[torch.Tensor, ...] = field(init=False, repr=False, compare=False)
    planes: tuple[torch.Tensor, ...] = field(init=False, repr=False, compare=False)

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
        self._check_scale()
        if self.layout.is_flat:
            self._see_as_rows()
        else:
            self._see_as_planes()

    @property
    def num_pages(self) -> int:
        """Pages in the storage."""
        return self.storage.shape[0]

    def _check_scale(self) -> None:
        if self.scale is None and not self.layout.scale_shapes:
            return
        self.layout.check_scale(self.scale)
        if self.scale is not None and self.scale.device != self.storage.device:
            raise LayoutError(f"the cache's scales are on {self.scale.device} and its storage on {self.storage.device}")

    def _see_as_rows(self) -> None:
        """Set page_stride, the rows from page to page, rows, the storage as one list of them, and parts, views of those."""
        page, row, element = self.storage.stride()
        starts_on_rows = row >= self.layout.width and page % row == 0 and page >= row * self.rows_per_page
        if self.num_pages and self.layout.width and (element != 1 or not starts_on_rows):
            raise LayoutError(
                f"cache storage has strides {self.storage.stride()}; elements must be dense, rows at least {self.layout.width} "
                f"apart and pages a whole number of rows apart, at least {self.rows_per_page}"
            )
        stride = page // row if self.num_pages and row else self.rows_per_page
        count = (self.num_pages - 1) * stride + self.rows_per_page if self.num_pages else 0
        start = self.storage.storage_offset()
        is_tight = self.block_size == self.rows_per_page
        object.__setattr__(self, "page_stride", stride)
        object.__setattr__(self, "rows", self.storage.as_strided((count, self.layout.width), (row, 1), start))
        object.__setattr__(self, "planes", (self.storage if is_tight else self.storage[:, : self.block_size],))
        # One view each, and not a split: an operator makes its cache anew for every call.
        parts = [
            self.storage.as_strided((count, *part), (row, *strides), start + first)
            for part, strides, first in (_locate_parts(self.layout.parts) if self.layout.blocks is None else ())
        ]
        object.__setattr__(self, "parts", tuple(parts))

    def _see_as_planes(self) -> None:
        """Set page_stride, here the rows of a page, and planes; rows and parts are empty, since no view has them."""
        page, row, element = self.storage.stride()
        width, alignment, tile = self.layout.width, self.layout.page_alignment, self.layout.tile
        is_apart = page >= width * self.rows_per_page and page % alignment == 0
        # A lone page's stride means nothing.
        if self.num_pages and not (element == 1 and row == width and (is_apart or self.num_pages == 1)):
            raise LayoutError(
                f"cache storage has strides {self.storage.stride()}; pages of layout {self.layout.name!r} are dense, "
                f"{width * self.rows_per_page} bytes at least, and a multiple of {alignment} bytes apart"
            )
        if tile is not None and self.block_size % tile[0]:
            raise LayoutError(f"block_size {self.block_size} is no multiple of the {tile[0]} tokens of this layout's tiles")
        edges = accumulate(self.layout.planes, initial=0)
        start = self.storage.storage_offset()
        planes = tuple(
            self.storage.as_strided((self.num_pages, self.block_size, piece), (page, piece, 1), start + edge * self.block_size)
            for edge, piece in zip(edges, self.layout.planes, strict=False)
        )
        object.__setattr__(self, "page_stride", self.rows_per_page)
        object.__setattr__(self, "rows", self.storage.as_strided((0, width), (width, 1), start))
        object.__setattr__(self, "parts", ())
        object.__setattr__(self, "planes", planes)


@cache
def _locate_parts(parts: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]:
    """Each part's shape, its dense strides and where in a row it starts."""
    starts = accumulate(map(prod, parts), initial=0)
    strides = [tuple(prod(part[axis + 1 :]) for axis in range(len(part))) for part in parts]
    return tuple(zip(parts, strides, starts, strict=False))
