"""FlashAttention's calls as values, in the spelling of each generation and of the fork; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hal.common.vendor import AttentionInputs, KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """The rows each query attends to: int32 [tokens, a multiple of 128] with -1 for none, and how many lead the list."""

    rows: torch.Tensor
    valid: torch.Tensor


def build_call(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    """The call of a kernel over pages or contiguous keys."""
    return _SPELLINGS[kernel.api](kernel, inputs)


def build_gather_call(kernel: KernelFacts, inputs: AttentionInputs, gather: Gather) -> VendorCall:
    """The call of a fourth-generation kernel that gathers rows; k, v [rows, 1, width], a sequence of one query per token.

    Never causal: rows are in no order, and the choice of rows already respects it.
    """
    kwargs = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "cu_seqlens_q": inputs.query_start_loc,
        "cu_seqlens_k": inputs.key_start_loc,
        "seqused_k": inputs.key_lens,
        "max_seqlen_q": inputs.max_query_len,
        "max_seqlen_k": inputs.max_seq_len,
        "gather_kv_indices": gather.rows,
        "softmax_scale": inputs.softmax_scale,
        "causal": False,
    }
    if kernel.api == "fa4":
        return _call(kernel, {**kwargs, "qv": inputs.q_latent, "return_lse": inputs.need_lse})
    named = {"q_v": inputs.q_latent, "return_softmax_lse": inputs.need_lse, "gather_kv_valid_length": gather.valid}
    # The counts only spare work: what lies past them is -1, which every release skips.
    return _call(kernel, {**kwargs, **named, **kernel.options}, optional={"gather_kv_valid_length"})


def returned_lse(returned: Any, *, is_gather: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out, and the natural-log LSE as [tokens, heads] where there is one: all but gathering kernels give [heads, tokens]."""
    if not isinstance(returned, (tuple, list)):
        return returned, None
    out, lse = returned[0], returned[1]
    return out, lse if lse is None or is_gather else lse.transpose(0, 1)


def _call(kernel: KernelFacts, kwargs: Mapping[str, Any], optional: set[str] | None = None) -> VendorCall:
    return VendorCall(target=kernel.target, kwargs=kwargs, optional=frozenset(optional or ()), other_targets=kernel.other_targets)


def _spell_fa2(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    kwargs = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "cu_seqlens_q": inputs.query_start_loc,
        # Pages too are measured by the running sum of lengths.
        "cu_seqlens_k": inputs.key_start_loc if inputs.key_start_loc is not None else _running_sum(inputs.key_lens),
        "max_seqlen_q": inputs.max_query_len,
        "max_seqlen_k": inputs.max_seq_len,
        "softmax_scale": inputs.softmax_scale,
        "causal": inputs.masking.causal,
        "window_size": (-1, -1) if inputs.left is None else (inputs.left, 0),
        "softcap": inputs.masking.softcap or 0.0,
        "return_attn_probs": inputs.need_lse,
        "block_table": inputs.block_table,
    }
    return _call(kernel, kwargs)


def _spell_fa3(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    kwargs = {
        "q": inputs.q,
        "cu_seqlens_q": inputs.query_start_loc,
        "max_seqlen_q": inputs.max_query_len,
        "softmax_scale": inputs.softmax_scale,
        "causal": inputs.masking.causal,
        "window_size": (-1, -1) if inputs.left is None else (inputs.left, 0),
        "softcap": inputs.masking.softcap or 0.0,
        "qv": inputs.q_latent,
    }
    if inputs.block_table is None:
        contiguous = {"k": inputs.k, "v": inputs.v, "cu_seqlens_k": inputs.key_start_loc, "max_seqlen_k": inputs.max_seq_len}
        return _call(kernel, {**kwargs, **contiguous, "return_attn_probs": inputs.need_lse})
    paged = {"k_cache": inputs.k, "v_cache": inputs.v, "cache_seqlens": inputs.key_lens, "page_table": inputs.block_table}
    return _call(kernel, {**kwargs, **paged, "return_softmax_lse": inputs.need_lse})


def _spell_fork(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    is_paged = inputs.block_table is not None
    kwargs = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "q_v": inputs.q_latent,
        "cu_seqlens_q": inputs.query_start_loc,
        "max_seqlen_q": inputs.max_query_len,
        "max_seqlen_k": inputs.max_seq_len,
        # Exactly one of the two says how long the keys are.
        "cu_seqlens_k": None if is_paged else inputs.key_start_loc,
        "seqused_k": inputs.key_lens if is_paged else None,
        "block_table": inputs.block_table,
        "softmax_scale": inputs.softmax_scale,
        "causal": inputs.masking.causal,
        "window_size": None if inputs.left is None else [inputs.left, 0],
        "softcap": inputs.masking.softcap or 0.0,
        "return_softmax_lse": inputs.need_lse,
        "out": inputs.out,
        **kernel.options,
    }
    return _call(kernel, kwargs, optional={"out"})


def _spell_fa4(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    is_paged = inputs.block_table is not None
    kwargs = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "cu_seqlens_q": inputs.query_start_loc,
        "cu_seqlens_k": None if is_paged else inputs.key_start_loc,
        "seqused_k": inputs.key_lens if is_paged else None,
        "max_seqlen_q": inputs.max_query_len,
        "max_seqlen_k": inputs.max_seq_len,
        "page_table": inputs.block_table,
        "softmax_scale": inputs.softmax_scale,
        "causal": inputs.masking.causal,
        "window_size": (None, None) if inputs.left is None else (inputs.left, 0),
        "softcap": inputs.masking.softcap or 0.0,
        "return_lse": inputs.need_lse,
    }
    return _call(kernel, kwargs)


def _running_sum(lengths: torch.Tensor) -> torch.Tensor:
    starts = lengths.new_zeros(lengths.shape[0] + 1)
    starts[1:] = lengths.cumsum(0)
    return starts


_SPELLINGS: Mapping[str, Callable[[KernelFacts, AttentionInputs], VendorCall]] = {
    "fa2": _spell_fa2,
    "fa3": _spell_fa3,
    "fork": _spell_fork,
    "fa4": _spell_fa4,
}
