"""AITER's calls as values, fit for the published and the current signature alike; pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.common.vendor import AttentionInputs, KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch


def build_mla_call(
    kernel: KernelFacts,
    q: torch.Tensor,
    rows: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    out: torch.Tensor,
    *,
    softmax_scale: float,
    need_lse: bool,
) -> VendorCall:
    """MLA of q [tokens, heads, lora + rope] over CSR lists of cache rows [rows, lora + rope], each query its own sequence.

    out [tokens, heads, lora] is written in place. The LSE is asked for by name or not at all: what the published release
    returns in its place is uninitialised.
    """
    tokens = q.shape[0]
    kwargs = {
        "q": q,
        "kv_buffer": rows[:, None, None, :],
        "o": out,
        "qo_indptr": _count_up(indptr),
        "kv_indptr": indptr,
        "kv_indices": indices,
        "kv_last_page_lens": indptr.new_ones(tokens),
        "max_seqlen_q": 1,
        "sm_scale": softmax_scale,
        "page_size": 1,
        "nhead_kv": 1,
    }
    if need_lse:
        kwargs["return_lse"] = True
    # The published release knows no other page size and number of KV heads than these.
    return VendorCall(target=kernel.target, kwargs=kwargs, optional=frozenset({"page_size", "nhead_kv"}))


def build_unified_call(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    """Causal attention over pages, written to the inputs' out."""
    kwargs = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "out": inputs.out,
        "cu_seqlens_q": inputs.query_start_loc,
        "max_seqlen_q": inputs.max_query_len,
        "seqused_k": inputs.key_lens,
        "max_seqlen_k": inputs.max_seq_len,
        "softmax_scale": inputs.softmax_scale,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": inputs.block_table,
        "softcap": inputs.masking.softcap or 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
        "q_scales": None,
    }
    # Only current releases have q_scales, and there it has no default.
    return VendorCall(target=kernel.target, kwargs=kwargs, optional=frozenset({"q_scales"}), other_targets=kernel.other_targets)


def _count_up(indptr: torch.Tensor) -> torch.Tensor:
    """int32 [tokens + 1] from 0: one query per sequence."""
    return indptr.new_ones(indptr.shape[0]).cumsum(0, dtype=indptr.dtype) - 1
