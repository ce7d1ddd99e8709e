"""What one cached token holds, as data, and what follows from it without reading a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Literal

from hal.common.contract.errors import LayoutError
from hal.config.sizes import page_bytes, row_bytes

from .text import describe

if TYPE_CHECKING:
    import torch

ScaleFormat = Literal["float32", "power_of_two", "ue8m0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScaling:
    """How a byte record holds its lanes: the first `lanes` as e4m3 with a scale per block of them, the others as bf16.

    scale_format: fp32, fp32 rounded up to a power of two, or that power's exponent in one byte (ue8m0). scales_last: the
    scales follow the bf16 lanes instead of preceding them. amax_floor: a block's largest magnitude counts as at least this,
    and no scale is below the smallest normal fp32. rounds_to_bf16: values are rounded to bf16 before they are quantised.
    """

    lanes: int
    block: int
    scale_format: ScaleFormat
    amax_floor: float
    scales_last: bool = False
    rounds_to_bf16: bool = False

    @property
    def num_blocks(self) -> int:
        """Scales of one record; the last block may be a short one."""
        return -(-self.lanes // self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """One cached token: a row of elements, its parts end to end, or a byte record that holds them quantised.

    parts: the shape of each part per token; `kv` has K [num_kv_heads, head_dim] and V [num_kv_heads, v_head_dim],
    `latent` has [kv_lora_rank] and [qk_rope_head_dim], `indexer` and `compressed` have [head_dim].
    fp8: the e4m3 variant of a quantised layout. scale_shapes: the fp32 scales that must come with the rows, any one of the
    shapes. blocks: what a byte record is made of. planes: elements of the pieces of a row that a page keeps apart, all
    tokens' first piece before all tokens' second one. page_alignment: bytes that a page is padded to a multiple of.
    tile: (tokens, bytes) of the tiles in which a page keeps its first plane.
    widths: elements of each part; width: elements of a whole row in storage. description: all of it as a text, which
    parse_layout reads.
    """

    name: str
    dtype: str
    parts: tuple[tuple[int, ...], ...]
    fp8: str | None = None
    scale_shapes: tuple[tuple[int, ...], ...] = ()
    blocks: BlockScaling | None = None
    planes: tuple[int, ...] = ()
    page_alignment: int = 1
    tile: tuple[int, int] | None = None
    widths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    width: int = field(init=False, repr=False, compare=False)
    description: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "description", describe(self))
        widths = tuple(prod(part) for part in self.parts)
        object.__setattr__(self, "widths", widths)
        object.__setattr__(self, "planes", self.planes or (sum(widths),))
        object.__setattr__(self, "width", sum(self.planes))
        if self.tile is not None and self.planes[0] % self.tile[1]:
            raise LayoutError(f"records of {self.planes[0]} bytes do not divide into tiles of {self.tile[1]} bytes")

    @property
    def is_quantised(self) -> bool:
        """Whether a row holds less than the values that were written."""
        return self.fp8 is not None

    @property
    def is_flat(self) -> bool:
        """Whether a row's elements lie together in its page."""
        return len(self.planes) == 1 and self.tile is None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one row."""
        return row_bytes(self.width, self.dtype)

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one page of block_size tokens, padding included."""
        return page_bytes(self.bytes_per_token, block_size, self.page_alignment)

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of rows [tokens, width] as parts [tokens, *part] of stored elements; LayoutError for byte records."""
        if self.blocks is not None:
            raise LayoutError(f"a record of layout {self.name!r} is no list of its parts' elements; unpack it")
        pieces = rows.split(self.widths, dim=-1)
        return tuple(piece.unflatten(-1, part) for piece, part in zip(pieces, self.parts, strict=True))

    def check_parts(self, shapes: Sequence[Sequence[int]]) -> None:
        """Raise LayoutError, with both, unless the shapes are the ones this layout holds."""
        if tuple(map(tuple, shapes)) != self.parts:
            raise LayoutError(
                f"parts of shape {[list(shape) for shape in shapes]} per token do not fit layout {self.name!r}, "
                f"which holds {[list(part) for part in self.parts]}"
            )

    def check_scale(self, scale: torch.Tensor | None) -> None:
        """Raise LayoutError for scales as check_scale_form has it, and where the host sees one that is not above 0."""
        self.check_scale_form(scale)
        if scale is None:
            return
        from .scales import can_see, describe_wrong

        wrong = describe_wrong(scale) if can_see(scale) else None
        if wrong is not None:
            raise LayoutError(f"the scales of layout {self.name!r} are {wrong}; expected finite numbers above 0")

    def check_scale_form(self, scale: torch.Tensor | None) -> None:
        """Raise LayoutError for scales that are missing, not wanted, not fp32 or of another shape."""
        if scale is None and not self.scale_shapes:
            return
        import torch

        if isinstance(scale, torch.Tensor):
            if scale.dtype is torch.float32 and tuple(scale.shape) in self.scale_shapes:
                return
            given = f"{str(scale.dtype).removeprefix('torch.')} {list(scale.shape)}"
        else:
            given = "none" if scale is None else f"a {type(scale).__name__}, which is no tensor"
        if not self.scale_shapes:
            raise LayoutError(f"layout {self.name!r} keeps no scales outside its rows; got {given}")
        wanted = " or ".join(str(list(shape)) for shape in self.scale_shapes)
        raise LayoutError(f"layout {self.name!r} needs scales float32 {wanted} beside its rows; got {given}")


def record_pieces(layout: RowLayout) -> tuple[slice, slice, slice]:
    """Where a byte record keeps its e4m3 values, its scales and its bf16 lanes; what follows the scales is zero."""
    blocks = layout.blocks
    if blocks is None:
        raise LayoutError(f"layout {layout.name!r} keeps plain elements, not byte records")
    scale_bytes = blocks.num_blocks * (1 if blocks.scale_format == "ue8m0" else 4)
    plain_bytes = 2 * (sum(layout.widths) - blocks.lanes)
    if blocks.scales_last:
        plain = slice(blocks.lanes, blocks.lanes + plain_bytes)
        return slice(blocks.lanes), slice(plain.stop, plain.stop + scale_bytes), plain
    scales = slice(blocks.lanes, blocks.lanes + scale_bytes)
    return slice(blocks.lanes), scales, slice(scales.stop, scales.stop + plain_bytes)
