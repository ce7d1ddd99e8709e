"""A layout as a codec: how the parts of a token become a row, and rows become parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hal.common.contract.errors import LayoutError

from .row_layout import RowLayout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(RowLayout):
    """A codec of one cached token; what it holds is said field by field in RowLayout."""

    def pack(self, parts: Sequence[torch.Tensor], scale: torch.Tensor | None = None) -> torch.Tensor:
        """Rows [tokens, width] in the layout's dtype, from parts [tokens, *part]; LayoutError for other shapes.

        scale: the fp32 scales of a layout that keeps them outside. Values saturate, infinities too; NaN stays NaN, and
        neither changes the scale of its neighbours.
        """
        from .codecs import pack

        self.check_parts([part.shape[1:] for part in parts])
        if len({part.shape[0] for part in parts}) > 1:
            raise LayoutError(f"parts of {[part.shape[0] for part in parts]} tokens; a row is made of one token's parts")
        self.check_scale(scale)
        return pack(self, parts, scale)

    def unpack(self, rows: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """The parts [tokens, *part] of rows [tokens, width]: views where nothing is quantised, else fp32 copies.

        LayoutError for rows of another width.
        """
        if rows.shape[-1] != self.width:
            raise LayoutError(f"rows of shape {list(rows.shape)} are none of layout {self.name!r}, which are {self.width} wide")
        if self.fp8 is None:
            return self.split(rows)
        from .codecs import unpack

        self.check_scale(scale)
        return unpack(self, rows, scale)
