"""Cases of apply_sink."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect, expect_close, expect_dtype
from hal.testing.storage import make_generator, random_tensor, torch_dtype

from .placement import place_of, transpose_lse, untouched

TOKENS, HEADS, WIDTH = 6, 5, 16


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of apply_sink."""
    del capabilities
    for dtype in sizes.dtypes:
        for sink_dtype in dict.fromkeys((dtype, "float32")):
            for tokens in (TOKENS, 0):
                note = "" if tokens else "zero_tokens"
                name = describe("apply_sink", dtype, f"{sink_dtype}_sink", note)
                yield Case(call="apply_sink", id=name, check=partial(check_sink, dtype, sink_dtype, tokens, name))


def check_sink(dtype: str, sink_dtype: str, tokens: int, name: str, backend: Backend) -> None:
    """Raise ConformanceError; a sink far below leaves out as it is, one far above takes all of it, an empty row stays 0.

    Below and above may be as far as infinity, and an empty row may hold anything.
    """
    generator, where = make_generator(name), place_of(backend)
    out = random_tensor(generator, tokens, HEADS, WIDTH, dtype=dtype)
    lse = random_tensor(generator, tokens, HEADS, dtype="float32", scale=3.0)
    sink = random_tensor(generator, HEADS, dtype=sink_dtype)
    sink[1], sink[2], sink[3], sink[4] = -1e4, 1e4, -math.inf, math.inf
    out[:1], lse[:1] = 0.0, -math.inf
    out[:1, 1:] = torch.tensor([torch.nan, math.inf, -math.inf])[torch.arange(HEADS - 1) % 3, None].to(out.dtype)
    expected = reference.apply_sink(out, lse, sink)
    given = (out.to(where), transpose_lse(lse.to(where)), sink.to(where))
    with untouched(out=given[0], lse=given[1], sink=given[2]):
        actual = backend.apply_sink(*given)
    expect_dtype(actual, torch_dtype(dtype), "out")
    expect_close(actual, expected, dtype, "out")
    expect(bool((actual[:1] == 0).all()), "a row without keys is not exactly 0 after its sink")
    for head in (1, 3):
        expect(bool((actual[1:, head] == out.to(where)[1:, head]).all()), f"a sink of {float(sink[head])} changed out")
    expect(bool(torch.isfinite(actual).all()), "out is not finite")
