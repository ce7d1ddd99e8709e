"""Index scores of a batch against its cached index keys."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch
from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts.parse import parse_layout

from .batch_form import BATCH, batch_operands, flatten_batch, read_batch
from .cache_form import CACHE, read_cache
from .calls import find_calls
from .operands import ANY, FLOATS, check_operands, given
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


def _check(
    iq: torch.Tensor,
    weights: torch.Tensor,
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    span: list[int] | None,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
) -> None:
    (*_, width), *others = parse_layout(layout).parts
    if others:
        raise LayoutError(f"hal.ops.index_scores: a token of layout {parse_layout(layout).name!r} is no single index key")
    check_operands("index_scores", ("iq", iq, FLOATS, (ANY, ANY, width)))
    tokens, heads, _ = iq.shape
    check_operands(
        "index_scores",
        ("iq", iq, None, None),
        ("weights", weights, FLOATS, (tokens, heads)),
        *given(storage=storage, scale=scale),
        *batch_operands(tokens, query_start_loc, seq_lens, block_table, key_starts, key_stops),
    )
    if span is not None and all(type(edge) is int for edge in (*span, tokens)):
        requests = seq_lens.shape[0]
        if not (0 <= span[0] <= span[1] <= tokens and 0 <= span[2] <= span[3] <= requests and span[4] >= 0):
            raise LayoutError(
                f"hal.ops.index_scores: chunk of tokens {span[0]} to {span[1]}, requests {span[2]} to {span[3]} and {span[4]} "
                f"keys; the batch has {tokens} tokens and {requests} requests"
            )
    refuse_gradients(iq, weights, storage, scale)


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
    _check(iq, weights, storage, scale, layout, span, query_start_loc, seq_lens, block_table, key_starts, key_stops)
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
    _check(iq, weights, storage, scale, layout, span, query_start_loc, seq_lens, block_table, key_starts, key_stops)
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
