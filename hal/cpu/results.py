"""Where a call's results go."""

from __future__ import annotations

import torch

from hal.common.contract.dense import refuse_shared
from hal.common.contract.errors import LayoutError


def prepare_results(
    q: torch.Tensor, width: int, need_lse: bool, out: torch.Tensor | None, **inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, width] and lse [tokens, heads] (None unless asked for): out unset, lse -inf as in an empty row.

    LayoutError where a given out has another shape or dtype, or elements that share places with each other, q or the inputs.
    """
    shape = (q.shape[0], q.shape[1], width)
    if out is None:
        out = q.new_empty(shape)
    elif tuple(out.shape) != shape or out.dtype != q.dtype or not out.is_cpu:
        raise LayoutError(
            f"out is {out.dtype} {list(out.shape)} on {out.device}; this call writes {q.dtype} {list(shape)} on {q.device}"
        )
    else:
        refuse_shared(out, q=q, **inputs)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = torch.full(shape[:2], float("-inf"), dtype=dtype) if need_lse else None
    return out, lse
