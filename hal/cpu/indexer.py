"""The index scores of a batch against its cached index keys."""

from __future__ import annotations

import torch

from hal.common.kernels import IndexerChunk, KVCache, PagedBatch

from .cache import read_request
from .numbers import compute_dtype

# Elements of one tile of per-head products: two MiB of fp32, so that it never leaves the processor's cache.
_TILE_ELEMENTS = 1 << 19


def score_keys(
    iq: torch.Tensor, weights: torch.Tensor, cache: KVCache, batch: PagedBatch, chunk: IndexerChunk | None
) -> torch.Tensor:
    """Scores [chunk tokens, keys]: sum_h weights_h * relu(q_h . k), -inf past each query's own position."""
    starts, seq_lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    if chunk is None:
        chunk = IndexerChunk(
            token_start=0,
            token_stop=iq.shape[0],
            request_start=0,
            request_stop=len(seq_lens),
            max_seq_len=batch.max_seq_len,
        )
    dtype = compute_dtype(iq.dtype)
    scores = torch.full((chunk.token_stop - chunk.token_start, chunk.max_seq_len), float("-inf"), dtype=dtype)
    for request in range(chunk.request_start, chunk.request_stop):
        begin, end = max(starts[request], chunk.token_start), min(starts[request + 1], chunk.token_stop)
        if begin >= end:
            continue
        first = seq_lens[request] - (starts[request + 1] - begin)
        # Queries before the request's first key see nothing.
        begin, first = max(begin, begin - first), max(0, first)
        num_keys = first + (end - begin)
        if begin >= end:
            continue
        stored, is_missing = read_request(cache, batch, request, 0, num_keys)
        (keys,) = cache.layout.unpack(stored, cache.scale)
        rows = scores[begin - chunk.token_start : end - chunk.token_start, :num_keys]
        _score_request(iq[begin:end].to(dtype), weights[begin:end].to(dtype), keys.to(dtype), first, rows)
        if is_missing is not None:
            rows.masked_fill_(is_missing[None, :], float("-inf"))
    return scores if dtype == torch.float64 else scores.float()


def _score_request(iq: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, first: int, rows: torch.Tensor) -> None:
    num_queries, num_heads, _ = iq.shape
    step = max(1, min(num_queries, _TILE_ELEMENTS // (num_heads * 1024)))
    for begin in range(0, num_queries, step):
        end = min(begin + step, num_queries)
        bound = first + end
        span = max(1024, _TILE_ELEMENTS // (num_heads * (end - begin)))
        flat = iq[begin:end].reshape((end - begin) * num_heads, -1)
        for start in range(0, bound, span):
            stop = min(start + span, bound)
            products = torch.mm(flat, keys[start:stop].T).relu_().unflatten(0, (end - begin, num_heads))
            rows[begin:end, start:stop] = torch.bmm(weights[begin:end, None, :], products).squeeze(1)
        if end - begin > 1:
            positions = first + torch.arange(begin, end)
            future = torch.arange(first + begin, bound)[None, :] > positions[:, None]
            rows[begin:end, first + begin : bound].masked_fill_(future, float("-inf"))
