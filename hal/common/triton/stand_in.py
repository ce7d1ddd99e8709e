"""What stands for a tensor where only its element type, shape and strides matter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A tensor without memory; its address counts as a multiple of 16, as an allocator's do."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def stride(self, dimension: int) -> int:
        """Elements from one index of a dimension to the next."""
        return self.strides[dimension]

    def data_ptr(self) -> int:
        """An aligned address that nothing reads."""
        return 0


def stand_in(dtype: str, *shape: int) -> StandIn:
    """A dense one."""
    strides = tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    return StandIn(dtype=dtype, shape=shape, strides=strides)


def head_major(dtype: str, tokens: int, heads: int, width: int) -> StandIn:
    """[tokens, heads, width] whose memory runs head by head."""
    return StandIn(dtype=dtype, shape=(tokens, heads, width), strides=(width, tokens * width, 1))
