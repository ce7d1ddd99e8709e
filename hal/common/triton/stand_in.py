"""What stands for a tensor where only its element type, shape and strides matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A tensor without memory; its address counts as a multiple of 16, as an allocator's do, unless one is given."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int = 0

    def stride(self, dimension: int) -> int:
        """Elements from one index of a dimension to the next."""
        return self.strides[dimension]

    def data_ptr(self) -> int:
        """The address, which nothing reads."""
        return self.address


def stand_in(dtype: str, *shape: int) -> StandIn:
    """A dense one."""
    strides = tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    return StandIn(dtype=dtype, shape=shape, strides=strides)


def id_rows(tokens: int, width: int) -> tuple[StandIn, ...]:
    """int32 [tokens, width] as any run of its rows may lie: where rows are no multiple of 16 bytes, some begin between two."""
    aligned = stand_in("int32", tokens, width)
    return (aligned,) if width % 4 == 0 else (aligned, replace(aligned, address=4))


def spaced(dtype: str, tokens: int, width: int, stride: int) -> StandIn:
    """[tokens, width] out of a wider tensor, whose rows are stride elements apart."""
    return StandIn(dtype=dtype, shape=(tokens, width), strides=(stride, 1))


def head_major(dtype: str, tokens: int, heads: int, width: int) -> StandIn:
    """[tokens, heads, width] whose memory runs head by head."""
    return StandIn(dtype=dtype, shape=(tokens, heads, width), strides=(width, tokens * width, 1))
