"""A sample kernel written without care: its whole tile, as wide as it may be, lives in registers."""

# Capitals are a kernel's compile-time constants.
# ruff: noqa: N803

import triton
import triton.language as tl
from triton.compiler import ASTSource


@triton.jit
def attend_carelessly(q, k, out, count, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, WIDTH)
    queries = tl.load(q + rows[:, None] * WIDTH + columns[None, :])
    total = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for first in range(0, count, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        keys = tl.load(k + n[:, None] * WIDTH + columns[None, :], mask=(n < count)[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys))
        total = tl.dot(tl.exp2(scores).to(keys.dtype), keys, total)
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], total.to(tl.bfloat16))


class Careless:
    """The kernel in a tile, as a source for hal.matrix.build."""

    def __init__(self, block_m: int, block_n: int, width: int, num_warps: int = 4, num_stages: int = 1) -> None:
        self.sides = {"BLOCK_M": block_m, "BLOCK_N": block_n, "WIDTH": width}
        self.options = {"num_warps": num_warps, "num_stages": num_stages}

    def to_source(self) -> ASTSource:
        pointers = ("q", "k", "out")
        signature = {**dict.fromkeys(pointers, "*bf16"), "count": "i32", **dict.fromkeys(self.sides, "constexpr")}
        places = {name: (place,) for place, name in enumerate(signature)}
        return ASTSource(
            fn=attend_carelessly,
            signature=signature,
            constexprs={places[name]: side for name, side in self.sides.items()},
            attrs={places[name]: [["tt.divisibility", 16]] for name in pointers},
        )
