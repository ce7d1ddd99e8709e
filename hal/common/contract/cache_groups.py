"""The caches that a plan asks for: one spec per tensor, and the groups that one block table serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cache import CacheKey
from .layouts import Layout

if TYPE_CHECKING:
    import torch

PARTS = ("kv", "entries", "index", "state", "index_state")
"""Every part of a cache, in the order in which a plan lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One cache tensor an engine must provide: [pages, rows_per_page, layout.width] in layout.dtype, zero-filled.

    part is "kv", "entries", "index", "state" or "index_state"; key is what plan.bind takes it under: the layer id for its
    KV, (layer id, part) for every other. A page holds block_size tokens in every cache, tokens_per_row of them in one row,
    or rows of its last last_rows tokens alone: that of a token is its offset in the page modulo rows_per_page.
    Pages lie page_bytes apart, which may be more than their rows take, or further: allocate() makes such a tensor. A layout
    with scale_shapes needs fp32 scales of one of these shapes beside it.
    """

    layer_id: int
    part: str
    group: int
    layout: Layout
    block_size: int
    tokens_per_row: int = 1
    last_rows: int | None = None

    @property
    def key(self) -> CacheKey:
        """The tensor's name in plan.bind."""
        return self.layer_id if self.part == "kv" else (self.layer_id, self.part)

    @property
    def rows_per_page(self) -> int:
        """Rows of one page."""
        return count_rows(self)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, padding included."""
        return self.layout.page_bytes(self.rows_per_page)

    @property
    def scale_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the fp32 scales kept beside the tensor may have; empty where the layout keeps none there."""
        return self.layout.scale_shapes

    def shape(self, num_blocks: int) -> tuple[int, int, int]:
        """The tensor's shape with that many pages."""
        return num_blocks, self.rows_per_page, self.layout.width

    def allocate(self, num_blocks: int, device: str | torch.device = "cpu") -> torch.Tensor:
        """A zero-filled tensor of the spec with that many pages, as far apart as their padding asks for."""
        from .records import allocate_pages

        return allocate_pages(self.layout, num_blocks, self.rows_per_page, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers whose pages have one size and one lifetime, so that one block table serves them all.

    block_size: tokens of a page, of which tokens_per_row share a row, or of which only the last last_rows have one.
    window: how many keys, its own included, a token sees at most in any layer that reads the group; None where it may see all.
    """

    group_id: int
    part: str
    layer_ids: tuple[int, ...]
    layout: Layout
    block_size: int
    window: int | None
    tokens_per_row: int = 1
    last_rows: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over the group's layers: its part of a page, rounded up where tokens share rows."""
        return -(-self.layout.bytes_per_token * count_rows(self) * len(self.layer_ids) // self.block_size)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over the group's layers."""
        return self.layout.page_bytes(count_rows(self)) * len(self.layer_ids)


def count_rows(cache: CacheSpec | CacheGroup) -> int:
    """Rows of one page: a row per token, or per tokens_per_row tokens, or for the last tokens of a page alone."""
    rows = cache.block_size // cache.tokens_per_row
    return rows if cache.last_rows is None else min(rows, cache.last_rows)
