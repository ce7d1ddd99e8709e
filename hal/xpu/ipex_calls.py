"""The legacy extension's paged attention as values; pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.common.vendor import KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import PagedBatch


def build_decode_call(
    kernel: KernelFacts,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    max_seq_len: int,
    out: torch.Tensor,
    *,
    softmax_scale: float,
) -> VendorCall:
    """One query per row of block_tables int32 [tokens, pages] over pages k, v [pages, kv_heads, page, width]."""
    heads, kv_heads = q.shape[1], k.shape[1]
    kwargs = {
        "output": out,
        "query": q,
        "key_cache": k,
        "value_cache": v,
        "head_mapping": _kv_head_of_each(q, heads, kv_heads),
        "scale": softmax_scale,
        "block_tables": block_tables,
        "context_lens": lengths,
        "block_size": k.shape[2],
        "max_context_len": max_seq_len,
        "alibi_slopes": None,
    }
    return VendorCall(target=kernel.target, kwargs=kwargs)


def build_prefill_call(
    kernel: KernelFacts,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: PagedBatch,
    block_table: torch.Tensor,
    out: torch.Tensor,
    *,
    softmax_scale: float,
) -> VendorCall:
    """Causal attention of a batch over dense pages k, v [pages, kv_heads, page, width]; is_cusal is the library's spelling."""
    starts = batch.seq_lens.new_zeros(batch.seq_lens.shape[0] + 1)
    starts[1:] = batch.seq_lens.cumsum(0)
    kwargs = {
        "output": out,
        "query": q,
        "key_cache": k,
        "value_cache": v,
        "cu_seqlens_q": batch.query_start_loc,
        "cu_seqlens_kv": starts,
        "max_seqlen_q": batch.max_query_len,
        "max_seqlen_kv": batch.max_seq_len,
        "scale": softmax_scale,
        "is_cusal": True,
        "block_tables": block_table,
        "alibi_slopes": None,
    }
    return VendorCall(target=kernel.target, kwargs=kwargs)


def _kv_head_of_each(q: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    import torch

    return torch.arange(heads, dtype=torch.int32, device=q.device) // (heads // kv_heads)
