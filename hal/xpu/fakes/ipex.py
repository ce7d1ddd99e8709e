"""The legacy extension's paged attention: heads of a page together, results written in place, no LSE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import torch

from hal.testing.stand_ins.attend import Fetch, Rule, attend_batch, read_pages, require, require_dtype, require_int32


def make_library(arch: str, release: str) -> Mapping[str, Callable[..., object]]:
    """The library on any arch."""
    del arch, release

    def single_query(a: SimpleNamespace) -> None:
        lengths = a.context_lens.tolist()
        require_int32(head_mapping=a.head_mapping, block_tables=a.block_tables, context_lens=a.context_lens)
        require(len(lengths) == a.query.shape[0] == a.block_tables.shape[0], "one query per row of the table")
        require(all(1 <= length <= a.max_context_len for length in lengths), f"lengths {lengths}, at most {a.max_context_len}")
        require(a.block_size == a.key_cache.shape[2], f"block_size {a.block_size}, pages of {a.key_cache.shape[2]}")
        group = a.query.shape[1] // a.key_cache.shape[1]
        require(a.head_mapping.tolist() == [head // group for head in range(a.query.shape[1])], "heads in groups")
        _attend(a, a.query, range(a.query.shape[0] + 1), _fetch(a, lengths), a.scale)

    def varlen(a: SimpleNamespace) -> None:
        require_int32(cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_kv=a.cu_seqlens_kv, block_tables=a.block_tables)
        require(a.is_cusal, "causal attention")
        # The real one does not check, and reads other values.
        require(a.key_cache.is_contiguous() and a.value_cache.is_contiguous(), "the prefill kernel reads dense pages alone")
        lengths = (a.cu_seqlens_kv[1:] - a.cu_seqlens_kv[:-1]).tolist()
        require(a.max_seqlen_kv >= max(lengths, default=0), f"max_seqlen_kv {a.max_seqlen_kv} below {lengths}")
        _attend(a, a.query, a.cu_seqlens_q.tolist(), _fetch(a, lengths), a.scale)

    return {"single_query_cached_kv_attention": single_query, "flash_attn_varlen_func": varlen}


def _fetch(a: SimpleNamespace, lengths: Sequence[int]) -> Fetch:
    keys, values = a.key_cache.transpose(1, 2), a.value_cache.transpose(1, 2)

    def fetch(request: int) -> tuple[torch.Tensor, torch.Tensor]:
        size, table = keys.shape[1], a.block_tables[request]
        return read_pages(keys, table, lengths[request], size), read_pages(values, table, lengths[request], size)

    return fetch


def _attend(a: SimpleNamespace, q: torch.Tensor, starts: Sequence[int], fetch: Fetch, scale: float) -> None:
    require_dtype((torch.bfloat16, torch.float16, torch.float32), query=q, key=a.key_cache, value=a.value_cache)
    require(q.is_contiguous() and a.output.is_contiguous(), "query and output must be contiguous")
    out, _ = attend_batch(
        q,
        starts,
        fetch,
        Rule(causal=True),
        softmax_scale=scale,
        value_width=a.output.shape[-1],
        empty_lse=math.nan,
        empty_out=math.nan,
    )
    a.output.copy_(out)
