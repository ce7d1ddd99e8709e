"""AITER: MLA over CSR lists that leaves its LSE unwritten unless it can be asked for, and causal attention over pages.

Attention over pages multiplies each value of a tile, those of keys that a query does not see by zero, as the real kernel does.
"""

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

HEADS = (16, 128)
# Rows of a block of queries, each a head of a token, and the most tokens of a tile of keys.
BLOCK_ROWS, LARGEST_TILE = 16, 64


def make_library(arch: str, release: str) -> Mapping[str, Callable[..., object]]:
    """The library on an arch; which of its two signatures a function has is the recorded release's."""

    def mla_decode(a: SimpleNamespace) -> object:
        _require_mla(arch, a)
        starts, indices = a.kv_indptr.tolist(), a.kv_indices.tolist()
        rows = a.kv_buffer[:, 0, 0, :]

        def fetch(token: int) -> tuple[torch.Tensor, torch.Tensor]:
            line = indices[starts[token] : starts[token + 1]]
            require(line, f"sequence {token} has no rows")
            require(all(0 <= row < rows.shape[0] for row in line), f"illegal memory access: rows {line} of {rows.shape[0]}")
            keys = rows[line][:, None]
            return keys, keys[..., : a.o.shape[-1]]

        out, lse = attend_batch(
            a.q,
            a.qo_indptr.tolist(),
            fetch,
            Rule(causal=True),
            softmax_scale=a.sm_scale,
            value_width=a.o.shape[-1],
            empty_lse=math.nan,
            empty_out=math.nan,
        )
        a.o.copy_(out)
        unwritten = torch.full((a.q.shape[0], 1, a.q.shape[1], 1), math.nan)
        if not hasattr(a, "return_lse"):
            # The published release returns the splits' buffers, which nobody wrote where there was one split.
            return unwritten, unwritten[..., 0]
        return unwritten, lse if a.return_lse else None

    def unified(a: SimpleNamespace) -> object:
        require(a.causal, "Only causal attention is supported")
        require(a.q_descale is None, "Q scales not supported")
        require(getattr(a, "q_scales", None) is None, "scales belong to fp8")
        require_dtype((torch.bfloat16, torch.float16), q=a.q, k=a.k, v=a.v, out=a.out)
        require_dense_heads(q=a.q, out=a.out)
        require_int32(cu_seqlens_q=a.cu_seqlens_q, seqused_k=a.seqused_k, block_table=a.block_table)
        require(a.k.shape[1] % 16 == 0, f"pages of {a.k.shape[1]} tokens")
        require(a.k.shape[-1] == a.v.shape[-1] == a.q.shape[-1], "keys, values and queries of one width")
        left, right = a.window_size
        require(left == -1 or right == 0, f"window_size {a.window_size}: to the left alone")
        lengths = a.seqused_k.tolist()
        require(a.max_seqlen_k >= max(lengths, default=0), f"max_seqlen_k {a.max_seqlen_k} below {lengths}")

        def fetch(request: int) -> tuple[torch.Tensor, torch.Tensor]:
            parts = (read_pages(part, a.block_table[request], lengths[request], a.k.shape[1]) for part in (a.k, a.v))
            keys, values = parts
            return keys, values

        rule = Rule(causal=True, left=None if left == -1 else left)
        out, _ = attend_batch(
            a.q,
            a.cu_seqlens_q.tolist(),
            fetch,
            rule,
            softmax_scale=a.softmax_scale,
            softcap=a.softcap,
            value_width=a.v.shape[-1],
            empty_lse=math.nan,
            empty_out=math.nan,
        )
        a.out.copy_(out)
        _multiply_hidden_values(a, rule, _tile_size(a, release))
        return None

    return {"mla_decode_fwd": mla_decode, "unified_attention": unified}


def _tile_size(a: SimpleNamespace, release: str) -> int:
    """Keys of a tile: for a whole prompt the most, for a decode no more than a page, in the published wheel a page exactly."""
    page: int = a.k.shape[1]
    if a.max_seqlen_q > 1:
        return LARGEST_TILE
    return page if release.startswith("0.1.7") else min(LARGEST_TILE, 1 << (page - 1).bit_length())


def _multiply_hidden_values(a: SimpleNamespace, rule: Rule, tile: int) -> None:
    """Add zero times each value that a block of queries reads and one of its queries does not see."""
    starts, page, group = a.cu_seqlens_q.tolist(), a.v.shape[1], a.q.shape[1] // a.v.shape[2]
    for request, length in enumerate(a.seqused_k.tolist()):
        begin, end = starts[request], starts[request + 1]
        for token in range(begin, end):
            first = (token - begin) // max(1, BLOCK_ROWS // group) * max(1, BLOCK_ROWS // group)
            context = length - (end - begin)
            stop = min(context + first + (BLOCK_ROWS - 1) // group + 1, length)
            # Only where a page is no tile is the last tile cut off where the block's keys end.
            stop = -(-stop // tile) * tile if tile == page else stop
            start = 0 if rule.left is None else max(0, context + first - rule.left) // tile * tile
            hidden = sorted(set(range(start, stop)) - set(rule.seen(context + token - begin, length)))
            values = read_pages(a.v, a.block_table[request], stop, page)[hidden]
            a.out[token] += (0 * values.float()).sum(0).repeat_interleave(group, dim=0).to(a.out.dtype)


def _require_mla(arch: str, a: SimpleNamespace) -> None:
    require(arch in ("gfx942", "gfx950"), f"no assembly kernels for {arch}")
    require_dtype((torch.bfloat16,), q=a.q, kv_buffer=a.kv_buffer, o=a.o)
    require_int32(qo_indptr=a.qo_indptr, kv_indptr=a.kv_indptr, kv_indices=a.kv_indices, kv_last_page_lens=a.kv_last_page_lens)
    require(a.q.is_contiguous() and a.o.is_contiguous(), "q and o must be contiguous")
    require(a.kv_buffer.shape[1:] == (1, 1, 576) and a.o.shape[-1] == 512, f"shapes {a.kv_buffer.shape} and {a.o.shape}")
    require(a.kv_buffer.stride(0) == 576, "rows must lie end to end")
    require(a.q.shape[1] in HEADS and a.o.shape[1] == a.q.shape[1], f"nhead={a.q.shape[1]} not supported")
    require(a.max_seqlen_q == 1 and a.sm_scale is not None and a.logit_cap == 0.0, "one query each, and an explicit scale")
    require(getattr(a, "page_size", 1) == 1 and getattr(a, "nhead_kv", 1) == 1, "pages of one token, one KV head")
    require(a.kv_last_page_lens.tolist() == [1] * a.q.shape[0], "a page of one token is full")
    require(a.kv_indptr.shape[0] == a.qo_indptr.shape[0] == a.q.shape[0] + 1, "one start more than queries")
