"""Index scores of a batch against its cached index keys."""

from __future__ import annotations

import torch

from hal.common.kernels import IndexerChunk, KVCache, PagedBatch

from .batch_form import BATCH, flatten_batch, read_batch
from .cache_form import CACHE, read_cache
from .calls import find_calls
from .registration import define_operator, refuse_gradients
from .results import log_dtype, settle


def index_scores(
    iq: torch.Tensor,
    weights: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    chunk: IndexerChunk | None = None,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    """Scores [chunk tokens, chunk.max_seq_len], as Backend.index_scores, by the operator."""
    span = None
    if chunk is not None:
        span = [chunk.token_start, chunk.token_stop, chunk.request_start, chunk.request_stop, chunk.max_seq_len]
    scores: torch.Tensor = _SCORES(
        iq,
        weights,
        cache.storage,
        cache.scale,
        cache.layout.description,
        cache.block_size,
        *flatten_batch(batch),
        span,
        backend,
    )
    return scores


def _run(
    iq: torch.Tensor,
    weights: torch.Tensor,
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    block_size: int,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    num_decodes: int,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
    span: list[int] | None,
    backend: str | None,
) -> torch.Tensor:
    refuse_gradients(iq, weights)
    batch = read_batch(query_start_loc, seq_lens, block_table, max_query_len, max_seq_len, num_decodes, key_starts, key_stops)
    cache, chunk = read_cache(storage, scale, layout, block_size), None if span is None else _read_chunk(span)
    return settle(find_calls(backend, iq.device).index_scores(iq, weights, cache, batch, chunk), log_dtype(iq.dtype))


def _trace(
    iq: torch.Tensor,
    weights: torch.Tensor,
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    block_size: int,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    num_decodes: int,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
    span: list[int] | None,
    backend: str | None,
) -> torch.Tensor:
    refuse_gradients(iq, weights)
    tokens, columns = (iq.shape[0], max_seq_len) if span is None else (span[1] - span[0], span[4])
    return iq.new_empty((tokens, columns), dtype=log_dtype(iq.dtype))


def _read_chunk(span: list[int]) -> IndexerChunk:
    token_start, token_stop, request_start, request_stop, max_seq_len = span
    return IndexerChunk(
        token_start=token_start,
        token_stop=token_stop,
        request_start=request_start,
        request_stop=request_stop,
        max_seq_len=max_seq_len,
    )


_SCORES = define_operator(
    "index_scores",
    f"(Tensor iq, Tensor weights, {CACHE}, {BATCH}, SymInt[]? chunk, str? backend) -> Tensor",
    _run,
    _trace,
)
