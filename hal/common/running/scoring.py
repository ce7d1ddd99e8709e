"""Index scores of queries whose bounds are not those of causality: a key is seen once its last token is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch

from .layer_kernels import LayerKernels


def score_chunk(
    kernels: LayerKernels,
    iq: torch.Tensor,
    weights: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    req_id: torch.Tensor,
    chunk: IndexerChunk,
) -> torch.Tensor:
    """fp32 [chunk tokens, chunk.max_seq_len] of a phase's queries iq [tokens, heads, width], -inf outside each one's bound.

    A backend that does not read key ranges is given every token as a request of its own, of which it is the last query.
    """
    score: Callable[..., torch.Tensor] = kernels.calls.index_scores
    if batch.key_stops is None:
        return score(iq, weights, cache, batch, chunk)
    if batch.max_query_len <= 1:
        # A lone query is its request's last position, which sees every whole row.
        return score(iq, weights, cache, replace(batch, key_stops=None), chunk)
    if kernels.reads_key_ranges("index_scores"):
        return score(iq, weights, cache, batch, chunk)
    span = slice(chunk.token_start, chunk.token_stop)
    count = span.stop - span.start
    apart = PagedBatch(
        query_start_loc=torch.arange(count + 1, dtype=torch.int32, device=iq.device),
        seq_lens=batch.key_stops[span],
        block_table=batch.block_table[req_id[span]],
        max_query_len=1,
        max_seq_len=chunk.max_seq_len,
    )
    whole = IndexerChunk(token_start=0, token_stop=count, request_start=0, request_stop=count, max_seq_len=chunk.max_seq_len)
    return score(iq[span], weights[span], cache, apart, whole)
