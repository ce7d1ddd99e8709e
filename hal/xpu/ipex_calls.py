"""The legacy extension's paged attention as values; pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.common.vendor import AttentionInputs, KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch


def build_decode_call(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    """One query per row of the block table [tokens, pages] over pages k, v [pages, kv_heads, page, width], written to out."""
    q, k = inputs.q, inputs.k
    kwargs = {
        "output": inputs.out,
        "query": q,
        "key_cache": k,
        "value_cache": inputs.v,
        "head_mapping": _kv_head_of_each(q, q.shape[1], k.shape[1]),
        "scale": inputs.softmax_scale,
        "block_tables": inputs.block_table,
        "context_lens": inputs.key_lens,
        "block_size": k.shape[2],
        "max_context_len": inputs.max_seq_len,
        "alibi_slopes": None,
    }
    return VendorCall(target=kernel.target, kwargs=kwargs)


def build_prefill_call(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    """Causal attention over dense pages k, v [pages, kv_heads, page, width], written to out; is_cusal is their spelling."""
    starts = inputs.key_lens.new_zeros(inputs.key_lens.shape[0] + 1)
    starts[1:] = inputs.key_lens.cumsum(0)
    kwargs = {
        "output": inputs.out,
        "query": inputs.q,
        "key_cache": inputs.k,
        "value_cache": inputs.v,
        "cu_seqlens_q": inputs.query_start_loc,
        "cu_seqlens_kv": starts,
        "max_seqlen_q": inputs.max_query_len,
        "max_seqlen_kv": inputs.max_seq_len,
        "scale": inputs.softmax_scale,
        "is_cusal": True,
        "block_tables": inputs.block_table,
        "alibi_slopes": None,
    }
    return VendorCall(target=kernel.target, kwargs=kwargs)


def _kv_head_of_each(q: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    import torch

    return torch.arange(heads, dtype=torch.int32, device=q.device) // (heads // kv_heads)
