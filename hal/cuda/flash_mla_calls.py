"""FlashMLA's calls as values; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hal.common.vendor import KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import Segment

INDEX_MULTIPLE = 128
"""Lists of rows are read in whole tiles."""


def build_sparse_call(
    kernel: KernelFacts, q: torch.Tensor, segment: Segment, *, kv_lora_rank: int, softmax_scale: float
) -> VendorCall:
    """MLA of q [tokens, heads, lora + rope], as many heads as the kernel is compiled for, over a list of rows per query."""
    from hal.common.vendor.tensors import pad_to, round_up

    rows = pad_to(segment.rows, 1, round_up(segment.rows.shape[1], INDEX_MULTIPLE), value=-1)
    kwargs = {
        "q": q,
        "kv": segment.cache.rows[:, None, :],
        "indices": rows[:, None, :],
        "sm_scale": softmax_scale,
        "d_v": kv_lora_rank,
        "topk_length": segment.valid,
    }
    # The counts only spare work: what lies past them is -1, which every release skips.
    return VendorCall(
        target=kernel.target, kwargs=kwargs, optional=frozenset({"topk_length"}), other_targets=kernel.other_targets
    )


def returned_parts(returned: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, lora] and the natural-log LSE [tokens, heads]: the first and the third of three results or more."""
    return returned[0], returned[2]
