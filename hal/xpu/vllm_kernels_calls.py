"""The calls of vllm-xpu-kernels as values; pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hal.common.vendor import KernelFacts, VendorCall

if TYPE_CHECKING:
    import torch

MIN_PREFILL_QUERIES = 2
"""A longest query of one takes the decode path, which writes no LSE; the bound may be loose, so this is one too many then."""


def build_call(
    kernel: KernelFacts,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    *,
    key_lens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    key_start_loc: torch.Tensor | None = None,
    softmax_scale: float,
    window: int | None,
    causal: bool,
    need_lse: bool,
    out: torch.Tensor | None,
) -> VendorCall:
    """Attention over pages (key_lens and block_table) or over contiguous keys (key_start_loc), never both."""
    kwargs: dict[str, Any] = {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens_q": query_start_loc,
        "max_seqlen_q": max(max_query_len, MIN_PREFILL_QUERIES) if need_lse else max_query_len,
        "max_seqlen_k": max_seq_len,
        "cu_seqlens_k": key_start_loc,
        "seqused_k": key_lens,
        "block_table": block_table,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_size": [-1, -1] if window is None else [window - 1, 0],
        "return_softmax_lse": need_lse,
        "out": out,
    }
    return VendorCall(target=kernel.target, kwargs=kwargs, optional=frozenset({"out"}))


def returned_lse(returned: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out, and the natural-log LSE as [tokens, heads] where there is one; the library has it as [heads, tokens]."""
    if not isinstance(returned, (tuple, list)):
        return returned, None
    return returned[0], returned[1].transpose(0, 1)
