"""Index scores of a batch against its cached index keys."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch
from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts.parse import parse_layout

from .batch_form import batch_operands, flatten_batch, read_batch
from .cache_form import flatten_cache, read_cache
from .calls import find_calls
from .operands import ANY, FLOATS, check_operands, given
from .registration import define_call, refuse_gradients
from .results import log_dtype, settle


class _Operands(NamedTuple):
    iq: torch.Tensor
    weights: torch.Tensor
    storage: torch.Tensor
    scale: torch.Tensor | None
    layout: str
    block_size: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    max_seq_len: int
    num_decodes: int
    key_starts: torch.Tensor | None
    key_stops: torch.Tensor | None
    chunk: list[int] | None
    backend: str | None


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
    scores: torch.Tensor = _SCORES(iq, weights, *flatten_cache(cache), *flatten_batch(batch), span, backend)
    return scores


def _check(operands: _Operands) -> None:
    iq, span = operands.iq, operands.chunk
    (*_, width), *others = parse_layout(operands.layout).parts
    if others:
        name = parse_layout(operands.layout).name
        raise LayoutError(f"hal.ops.index_scores: a token of layout {name!r} is no single index key")
    check_operands("index_scores", ("iq", iq, FLOATS, (ANY, ANY, width)))
    tokens, heads, _ = iq.shape
    check_operands(
        "index_scores",
        ("iq", iq, None, None),
        ("weights", operands.weights, FLOATS, (tokens, heads)),
        *given(storage=operands.storage, scale=operands.scale),
        *batch_operands(tokens, operands),
    )
    if span is not None and all(type(edge) is int for edge in (*span, tokens)):
        requests = operands.seq_lens.shape[0]
        if not (0 <= span[0] <= span[1] <= tokens and 0 <= span[2] <= span[3] <= requests and span[4] >= 0):
            raise LayoutError(
                f"hal.ops.index_scores: chunk of tokens {span[0]} to {span[1]}, requests {span[2]} to {span[3]} and {span[4]} "
                f"keys; the batch has {tokens} tokens and {requests} requests"
            )
    refuse_gradients(iq, operands.weights, operands.storage, operands.scale)


def _run(operands: _Operands) -> torch.Tensor:
    _check(operands)
    iq, chunk = operands.iq, None if operands.chunk is None else _read_chunk(operands.chunk)
    calls = find_calls(operands.backend, iq.device)
    scores = calls.index_scores(iq, operands.weights, read_cache(operands), read_batch(operands), chunk)
    return settle(scores, log_dtype(iq.dtype))


def _trace(operands: _Operands) -> torch.Tensor:
    _check(operands)
    iq, span = operands.iq, operands.chunk
    shape = (iq.shape[0], operands.max_seq_len) if span is None else (span[1] - span[0], span[4])
    return iq.new_empty(shape, dtype=log_dtype(iq.dtype))


def _read_chunk(span: list[int]) -> IndexerChunk:
    token_start, token_stop, request_start, request_stop, max_seq_len = span
    return IndexerChunk(
        token_start=token_start,
        token_stop=token_stop,
        request_start=request_start,
        request_stop=request_stop,
        max_seq_len=max_seq_len,
    )


_SCORES = define_call("index_scores", _Operands, "Tensor", _run, _trace)
