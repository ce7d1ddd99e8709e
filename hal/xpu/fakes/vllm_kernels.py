"""vllm-xpu-kernels: paged and contiguous attention, dense MLA of at most 8 heads, an LSE on the prefill path only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch

from hal.testing.stand_ins.attend import (
    Rule,
    attend_batch,
    read_pages,
    require,
    require_dense_heads,
    require_dtype,
    require_int32,
)

HEAD_DIMS = (64, 96, 128, 192, 256)


def make_library(arch: str, release: str) -> Mapping[str, Callable[..., object]]:
    """The library on an arch."""
    del release

    def varlen(a: SimpleNamespace) -> object:
        require(arch in ("pvc", "bmg", "lnl"), f"Only XE2/XE3 cutlass kernel is supported currently, not {arch}")
        _require_inputs(a)
        is_paged = a.block_table is not None
        lengths = a.seqused_k.tolist() if is_paged else (a.cu_seqlens_k[1:] - a.cu_seqlens_k[:-1]).tolist()
        starts = None if is_paged else a.cu_seqlens_k.tolist()

        def fetch(request: int) -> tuple[torch.Tensor, torch.Tensor]:
            length = lengths[request]
            if starts is None:
                size = a.k.shape[1]
                keys, values = (read_pages(part, a.block_table[request], length, size) for part in (a.k, a.v))
                return keys, values
            return a.k[starts[request] :][:length], a.v[starts[request] :][:length]

        left, right = (-1, -1) if a.window_size is None else a.window_size
        rule = Rule(causal=a.causal, left=None if left < 0 else left, right=None if right < 0 else right)
        out, lse = attend_batch(
            a.q,
            a.cu_seqlens_q.tolist(),
            fetch,
            rule,
            softmax_scale=a.softmax_scale,
            value_width=a.v.shape[-1],
            empty_lse=math.inf,
        )
        if a.out is not None:
            out = a.out.copy_(out)
        is_decode = is_paged and a.max_seqlen_q == 1
        return (out, torch.empty(0) if is_decode else lse.t().contiguous()) if a.return_softmax_lse else out

    return {"flash_attn_varlen_func": varlen}


def _require_inputs(a: SimpleNamespace) -> None:
    require_dtype((torch.bfloat16, torch.float16), q=a.q, k=a.k, v=a.v)
    require_dense_heads(q=a.q, k=a.k, v=a.v, out=a.out)
    require(a.q.is_contiguous(), "q must be contiguous")
    require_int32(cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_k=a.cu_seqlens_k, seqused_k=a.seqused_k, block_table=a.block_table)
    require((a.cu_seqlens_k is None) != (a.seqused_k is None), "seqused_k and cu_seqlens_k exclude each other")
    require(a.block_table is not None or a.cu_seqlens_k is not None, "without block_table cu_seqlens_k is required")
    require(a.block_table is None or a.seqused_k is not None, "with block_table seqused_k is required")
    require(a.softmax_scale is not None, "softmax_scale was left to the library")
    require(not a.softcap and a.q_v is None, "this stand-in knows neither softcap nor q_v")
    require(a.window_size is None or (isinstance(a.window_size, list) and len(a.window_size) == 2), "window_size is a 2-list")
    if a.block_table is not None:
        size = a.k.shape[1]
        require(size in (16, 32) or size % 64 == 0, f"pages of {size} tokens")
    widths = a.k.shape[-1], a.v.shape[-1]
    if widths == (576, 512):
        require(a.q.shape[1] <= 8 and a.k.shape[-2] == 1, f"MLA of {a.q.shape[1]} heads")
    else:
        require(widths[0] == widths[1] and widths[0] in HEAD_DIMS, f"head widths {widths}")
