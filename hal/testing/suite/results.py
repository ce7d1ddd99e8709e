"""What every attention call promises about its results, whatever it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hal.testing.compare import expect, expect_close, expect_dtype, expect_wide
from hal.testing.storage import random_tensor

Result = tuple[torch.Tensor, torch.Tensor | None]


def random_sink(generator: torch.Generator, heads: int, dtype: str) -> torch.Tensor:
    """Logits [heads] in the queries' type, as engines keep them; some head's leaves its results as they are."""
    sink = random_tensor(generator, heads, dtype=dtype)
    sink[-1] = -torch.inf
    return sink


def given_sink(sink: torch.Tensor | None) -> dict[str, Any]:
    """The argument of a call with a sink; none for backends that take none."""
    return {} if sink is None else {"sink": sink}


def check_attention(
    call: Callable[[torch.Tensor | None], Result],
    expected: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor | None,
    dtype: torch.dtype,
    need_lse: bool,
    roundings: int = 1,
) -> None:
    """Raise ConformanceError unless this holds: `call(out)` gives the expected values, in `out` where one is given.

    A row without keys is 0 and -inf exactly; the LSE is fp32, natural, and returned only when asked for.
    roundings: as expect_close's.
    """
    given_out, given_lse = call(out)
    expect(out is None or given_out is out, "out was given, and another tensor came back")
    expect_dtype(given_out, dtype, "out")
    expect_close(given_out, expected[0], dtype, "out", roundings)
    is_empty = expected[1] == -torch.inf
    expect(bool((given_out.cpu()[is_empty] == 0).all()), "a row without keys is not exactly 0 in out")
    if not need_lse:
        expect(given_lse is None, "no LSE was asked for, and one came back")
        return
    if given_lse is None:
        expect(False, "an LSE was asked for, and none came back")
        return
    expect_wide(given_lse, dtype, "lse")
    expect_close(given_lse, expected[1], "float32", "lse")
