"""FlashMLA's calls as values; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hal.common.contract.errors import LayoutError
from hal.common.vendor import KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache, Segment

INDEX_MULTIPLE = 128
"""Lists of rows are read in whole tiles."""
RECORD_INDEX_MULTIPLE = 64
"""Likewise lists of records."""
RECORD_PAGE = 64
"""Records of one page as the library counts them."""


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


def build_schedule_call(kernel: KernelFacts) -> VendorCall:
    """The call for an empty schedule, which the first attention call fills; current releases take no arguments."""
    return VendorCall(target=kernel.beside("get_mla_metadata"), kwargs={})


def build_record_call(
    kernel: KernelFacts, q: torch.Tensor, segment: Segment, schedule: Any, *, kv_lora_rank: int, softmax_scale: float
) -> VendorCall:
    """MLA of q [tokens, heads, lora + rope] over a list of packed records per query, each query a sequence of its own."""
    from hal.common.vendor.tensors import pad_to, round_up

    indices = _record_indices(segment)
    width = round_up(indices.shape[1], RECORD_INDEX_MULTIPLE)
    kwargs = {
        "q": q[:, None],
        "k_cache": _record_pages(segment.cache),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": kv_lora_rank,
        "tile_scheduler_metadata": schedule,
        "num_splits": None,
        "softmax_scale": softmax_scale,
        "causal": False,
        "is_fp8_kvcache": True,
        "indices": pad_to(indices, 1, width, value=-1)[:, None],
    }
    return VendorCall(target=kernel.target, kwargs=kwargs)


def returned_records(returned: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, lora] and LSE [tokens, heads] of [tokens, 1, heads, lora] and [tokens, heads, 1]."""
    return returned[0][:, 0], returned[1][:, :, 0]


def _record_pages(cache: KVCache) -> torch.Tensor:
    """The records [pages, 64, 1, bytes]; LayoutError where larger pages do not lie end to end."""
    (records,) = cache.planes
    if cache.block_size != RECORD_PAGE and not records.is_contiguous():
        raise LayoutError(
            f"pages of {cache.block_size} records lie {records.stride(0)} bytes apart; FlashMLA reads pages of {RECORD_PAGE}, "
            "so larger ones must lie end to end"
        )
    pages: torch.Tensor = records.unflatten(1, (-1, RECORD_PAGE)).flatten(0, 1).unsqueeze(2)
    return pages


def _record_indices(segment: Segment) -> torch.Tensor:
    """Rows as numbers of records, page * block_size + offset; -1 stays."""
    rows, cache = segment.rows, segment.cache
    if cache.page_stride == cache.block_size:
        return rows
    numbers = rows // cache.page_stride * cache.block_size + rows % cache.page_stride
    result: torch.Tensor = numbers.masked_fill(rows < 0, -1)
    return result
