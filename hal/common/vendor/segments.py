"""Sparse attention over several lists of rows by a kernel that takes one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from hal.common.contract.call_values import Segment
from hal.common.contract.dense import dense_numbers

from .pages import check_rows
from .tensors import Result, check_sparse, empty_results, settle_results

Attend = Callable[[Segment, bool], Result]
Merge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def merge_segments(
    attend: Attend,
    merge: Merge,
    q: torch.Tensor,
    segments: Sequence[Segment],
    kv_lora_rank: int,
    need_lse: bool,
    out: torch.Tensor | None,
    layouts: Collection[str] = ("latent",),
) -> Result:
    """The contract's out and lse of one softmax over all lists: attend(segment, need_lse) for each, merged by their LSE.

    layouts: those of the caches that attend reads.
    """
    check_sparse(q, segments, kv_lora_rank, out, layouts)
    lists = [
        segment._replace(rows=dense_numbers("rows", segment.rows, 2), valid=dense_numbers("valid", segment.valid))
        for segment in segments
    ]
    live = [segment for segment in lists if segment.cache.num_pages and segment.rows.shape[1]]
    if not q.shape[0] or not live:
        return empty_results(q, kv_lora_rank, need_lse, out)
    want_lse = need_lse or len(live) > 1
    total: tuple[torch.Tensor, torch.Tensor | None] | None = None
    for segment in live:
        check_rows(segment)
        result, lse = attend(segment, want_lse)
        target = out if len(live) == 1 else None
        part = settle_results(result, lse if want_lse else None, segment.valid, q.shape[1], kv_lora_rank, target)
        total = part if total is None else _merge(merge, total, part)
    if total is None:
        raise TypeError("no list of rows was attended to")
    result, lse = total
    if out is not None and result is not out:
        result = out.copy_(result)
    return result, lse if need_lse else None


def _merge(merge: Merge, left: Result, right: Result) -> Result:
    if left[1] is None or right[1] is None:
        raise TypeError("parts are merged by their LSE, and a kernel returned none")
    return merge(left[0], left[1], right[0], right[1])
