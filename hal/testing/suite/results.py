"""What every attention call promises about its results, whatever it computed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hal.testing.compare import expect, expect_close, expect_dtype, expect_wide

Result = tuple[torch.Tensor, torch.Tensor | None]


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
