"""Cache layouts: what one cached token holds, how parts become rows and rows become parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from hal.config import LayerShape
from hal.config.dtypes import dtype_name, item_size
from hal.config.sizes import kv_heads_on_rank

from .errors import LayoutError, NotBuiltError
from .layout_text import describe_layout

if TYPE_CHECKING:
    import torch

UNQUANTISED = ("kv", "latent", "indexer")
QUANTISED = ("latent_fp8", "fp8_ds_mla", "indexer_fp8", "compressed", "kv_fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One unquantised layout: a cached token is one row of elements, its parts end to end.

    parts: the shape of each part per token; `kv` has K [num_kv_heads, head_dim] and V [num_kv_heads, v_head_dim],
    `latent` has [kv_lora_rank] and [qk_rope_head_dim], `indexer` has [head_dim].
    widths: elements of each part; width: of a whole row. description: all of it as a text, which parse_layout reads.
    """

    name: str
    dtype: str
    parts: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    width: int = field(init=False, repr=False, compare=False)
    description: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(prod(part) for part in self.parts))
        object.__setattr__(self, "width", sum(self.widths))
        object.__setattr__(self, "description", describe_layout(self))

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one row."""
        return self.width * item_size(self.dtype)

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one page of block_size tokens."""
        return self.bytes_per_token * block_size

    def pack(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows [tokens, width] in the layout's dtype, from parts [tokens, *part]; LayoutError for other shapes."""
        import torch

        self.check_parts([part.shape[1:] for part in parts])
        flat = [part.reshape(part.shape[0], width) for part, width in zip(parts, self.widths, strict=True)]
        rows = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
        return rows.to(getattr(torch, self.dtype))

    def unpack(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of rows [tokens, width] as parts [tokens, *part]."""
        pieces = rows.split(self.widths, dim=-1)
        return tuple(piece.unflatten(-1, part) for piece, part in zip(pieces, self.parts, strict=True))

    def check_parts(self, shapes: Sequence[Sequence[int]]) -> None:
        """Nothing, or LayoutError with the shapes that were given and the ones this layout holds."""
        if tuple(map(tuple, shapes)) != self.parts:
            raise LayoutError(
                f"parts of shape {[list(shape) for shape in shapes]} per token do not fit layout {self.name!r}, "
                f"which holds {[list(part) for part in self.parts]}"
            )


def attention_layout(num_kv_heads: int, head_dim: int, v_head_dim: int, dtype: object) -> Layout:
    """The `kv` layout of this many heads on a rank."""
    return Layout(name="kv", dtype=dtype_name(dtype), parts=((num_kv_heads, head_dim), (num_kv_heads, v_head_dim)))


def latent_layout(kv_lora_rank: int, qk_rope_head_dim: int, dtype: object) -> Layout:
    """The `latent` layout; the rotary part may be empty."""
    return Layout(name="latent", dtype=dtype_name(dtype), parts=((kv_lora_rank,), (qk_rope_head_dim,)))


def index_layout(head_dim: int, dtype: object) -> Layout:
    """The `indexer` layout: one unquantised index key per token."""
    return Layout(name="indexer", dtype=dtype_name(dtype), parts=((head_dim,),))


def layer_layout(layer: LayerShape, kv_layout: str, dtype: object, tp: int = 1) -> Layout:
    """The layout that caches a layer's KV on one rank; NotBuiltError for a quantised one, LayoutError for a wrong kind."""
    if kv_layout in QUANTISED:
        raise NotBuiltError(f"the cache layout {kv_layout!r} is not written yet; use 'auto'")
    if layer.mla is not None and kv_layout in ("auto", "latent"):
        return latent_layout(layer.mla.kv_lora_rank, layer.mla.qk_rope_head_dim, dtype)
    if layer.kind == "compressed" and kv_layout in ("auto", "latent"):
        return latent_layout(layer.head_dim, 0, dtype)
    if layer.kind == "attention" and kv_layout in ("auto", "kv"):
        heads = kv_heads_on_rank(layer.num_kv_heads, tp)
        return attention_layout(heads, layer.head_dim, layer.v_head_dim, dtype)
    raise LayoutError(
        f"layer {layer.layer_id} (kind {layer.kind}) has no cache layout {kv_layout!r}; known: {', '.join(UNQUANTISED)}"
    )


def layer_index_layout(layer: LayerShape, dtype: object) -> Layout:
    """The layout that caches a layer's index keys; LayoutError where it owns no indexer."""
    if layer.indexer is None or not layer.indexer.owns:
        raise LayoutError(f"layer {layer.layer_id} owns no indexer, so it caches no index keys")
    return index_layout(layer.indexer.head_dim, dtype)


def block_table_width(max_model_len: int, block_size: int, dcp: int = 1) -> int:
    """Columns of a block table: pages of the longest request, padded so that a row covers whole runs of 128 tokens.

    Some paged kernels read a table row in runs of 128 tokens; this is the one place that decides its width.
    """
    pages = -(-max_model_len // (block_size * dcp))
    run = max(1, 128 // block_size)
    return -(-pages // run) * run
