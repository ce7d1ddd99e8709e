"""A buffer that a plan counts, before it exists."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hal.config.dtypes import item_size

_ITEM_SIZES = {"int32": 4, "int64": 8, "uint8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer: its name, shape and element type. transient: made during a call and given back, not kept."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    transient: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        size = _ITEM_SIZES[self.dtype] if self.dtype in _ITEM_SIZES else item_size(self.dtype)
        return prod(self.shape) * size
