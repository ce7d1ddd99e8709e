"""Attention over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.errors import BatchError
from hal.common.contract.masking import CAUSAL, Masking

from .caches import read_request
from .softmax import attend_keys, empty_result, visible_keys

HEADS = ("kv", "kv_fp8")


def paged_attention(
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    *,
    softmax_scale: float,
    masking: Masking = CAUSAL,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, v_head_dim] and lse [tokens, heads]; a request's last query sits at its last position.

    Where the batch has key ranges, they alone say what a query sees.
    """
    _check_query(q, cache)
    starts = batch.query_start_loc.tolist()
    lengths = batch.seq_lens.tolist()
    tables = batch.block_table.tolist()
    out, lse = empty_result(q.shape[0], q.shape[1], _value_width(cache))
    for request, seq_len in enumerate(lengths):
        keys, values = read_keys(cache, tables[request], seq_len)
        first, stop = starts[request], starts[request + 1]
        for token in range(first, stop):
            position = seq_len - (stop - token)
            seen = visible_keys(position, seq_len, masking)
            if batch.key_stops is not None:
                start = 0 if batch.key_starts is None else int(batch.key_starts[token])
                seen = list(range(start, int(batch.key_stops[token])))
            out[token], lse[token] = attend_keys(
                q[token], keys[seen], values[seen], softmax_scale=softmax_scale, softcap=masking.softcap
            )
    return out, lse


def read_keys(cache: KVCache, block_table: Sequence[int], seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A request's keys and values [seq_len, kv_heads, width]; a latent row is one head's key, its first part the value."""
    first, second = read_request(cache, block_table, seq_len)
    if cache.layout.name in HEADS:
        return first, second
    return torch.cat((first, second), dim=1)[:, None], first[:, None]


def _value_width(cache: KVCache) -> int:
    return cache.layout.parts[1][1] if cache.layout.name in HEADS else cache.layout.parts[0][0]


def _check_query(q: torch.Tensor, cache: KVCache) -> None:
    kv_heads, head_dim = cache.layout.parts[0] if cache.layout.name in HEADS else (1, sum(cache.layout.widths))
    if q.dim() != 3 or q.shape[2] != head_dim or q.shape[1] % kv_heads:
        raise BatchError(f"q has shape {list(q.shape)}; the cache needs [tokens, a multiple of {kv_heads} heads, {head_dim}]")
