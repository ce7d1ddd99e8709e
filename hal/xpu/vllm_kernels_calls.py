"""The calls of vllm-xpu-kernels as values; pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hal.common.vendor import AttentionInputs, KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch

MIN_PREFILL_QUERIES = 2
"""A longest query of one takes the decode path, which writes no LSE; the bound may be loose, so this is one too many then."""


def build_call(kernel: KernelFacts, inputs: AttentionInputs) -> VendorCall:
    """Attention over pages, or over contiguous keys where the inputs say where they start."""
    is_paged = inputs.key_start_loc is None
    longest = inputs.max_query_len
    kwargs: dict[str, Any] = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "cu_seqlens_q": inputs.query_start_loc,
        "max_seqlen_q": max(longest, MIN_PREFILL_QUERIES) if inputs.need_lse else longest,
        "max_seqlen_k": inputs.max_seq_len,
        # Exactly one of the two says how long the keys are.
        "cu_seqlens_k": inputs.key_start_loc,
        "seqused_k": inputs.key_lens if is_paged else None,
        "block_table": inputs.block_table,
        "softmax_scale": inputs.softmax_scale,
        "causal": inputs.masking.causal,
        "window_size": [-1, -1] if inputs.left is None else [inputs.left, 0],
        "return_softmax_lse": inputs.need_lse,
        "out": inputs.out,
    }
    return VendorCall(target=kernel.target, kwargs=kwargs, optional=frozenset({"out"}))


def returned_lse(returned: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out, and the natural-log LSE as [tokens, heads] where there is one; the library has it as [heads, tokens]."""
    if not isinstance(returned, (tuple, list)):
        return returned, None
    return returned[0], returned[1].transpose(0, 1)
