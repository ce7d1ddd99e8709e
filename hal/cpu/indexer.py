"""The index scores of a batch against its cached index keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch
from hal.common.contract.errors import BatchError, LayoutError

from .cache import read_request
from .checks import check_batch, check_floats
from .numbers import compute_dtype
from .ranges import split_ranges

# Elements of one tile of per-head products: two MiB of fp32, so that it never leaves the processor's cache.
_TILE_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One request's queries begin..end, and how many of its keys each sees; starts: what they do not see before those."""

    request: int
    begin: int
    end: int
    stops: Sequence[int]
    starts: Sequence[int] | None = None


def score_keys(
    iq: torch.Tensor, weights: torch.Tensor, cache: KVCache, batch: PagedBatch, chunk: IndexerChunk | None
) -> torch.Tensor:
    """Scores [chunk tokens, keys]: sum_h weights_h * relu(q_h . k), -inf past each query's own position or outside its range."""
    _check(iq, weights, cache)
    check_batch(batch)
    if chunk is None:
        chunk = IndexerChunk(
            token_start=0,
            token_stop=iq.shape[0],
            request_start=0,
            request_stop=batch.seq_lens.shape[0],
            max_seq_len=batch.max_seq_len,
        )
    elif chunk.token_stop > iq.shape[0] or chunk.request_stop > batch.seq_lens.shape[0]:
        raise BatchError(
            f"the chunk ends at token {chunk.token_stop} and request {chunk.request_stop}; there are {iq.shape[0]} tokens and "
            f"{batch.seq_lens.shape[0]} requests"
        )
    dtype = compute_dtype(iq.dtype)
    scores = torch.full((chunk.token_stop - chunk.token_start, chunk.max_seq_len), float("-inf"), dtype=dtype)
    for run in _from_positions(batch, chunk) if batch.key_stops is None else _from_ranges(batch, chunk):
        begin, end, stops, num_keys = run.begin, run.end, run.stops, max(run.stops)
        if num_keys > chunk.max_seq_len:
            # A device batch's lengths may be longer than the host was told; what does not fit in a row is not scored.
            num_keys = chunk.max_seq_len
            stops = [min(stop, num_keys) for stop in stops]
        stored, is_missing = read_request(cache, batch, run.request, 0, num_keys)
        (keys,) = cache.layout.unpack(stored, cache.scale)
        rows = scores[begin - chunk.token_start : end - chunk.token_start, :num_keys]
        _score_request(iq[begin:end].to(dtype), weights[begin:end].to(dtype), keys.to(dtype), stops, rows)
        if is_missing is not None:
            rows.masked_fill_(is_missing[None, :], float("-inf"))
        if run.starts is not None:
            rows.masked_fill_(torch.arange(num_keys)[None, :] < torch.tensor(run.starts)[:, None], float("-inf"))
    return scores if dtype == torch.float64 else scores.float()


def _check(iq: torch.Tensor, weights: torch.Tensor, cache: KVCache) -> None:
    check_floats("iq", iq, 3)
    check_floats("weights", weights, 2)
    if weights.shape != iq.shape[:2] or cache.layout.parts != ((iq.shape[2],),):
        raise LayoutError(
            f"index queries {list(iq.shape)}, weights {list(weights.shape)} and keys of layout {cache.layout.name!r} with parts "
            f"{[list(part) for part in cache.layout.parts]} do not go together: weights need the queries' tokens and heads, the "
            f"keys one part as wide as a query"
        )


def _from_positions(batch: PagedBatch, chunk: IndexerChunk) -> Iterator[_Run]:
    starts, seq_lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    for request in range(chunk.request_start, chunk.request_stop):
        begin, end = max(starts[request], chunk.token_start), min(starts[request + 1], chunk.token_stop)
        if begin >= end:
            continue
        first = seq_lens[request] - (starts[request + 1] - begin)
        # Queries before the request's first key see nothing.
        begin, first = max(begin, begin - first), max(0, first)
        if begin < end:
            yield _Run(request=request, begin=begin, end=end, stops=range(first + 1, first + end - begin + 1))


def _from_ranges(batch: PagedBatch, chunk: IndexerChunk) -> Iterator[_Run]:
    for part in split_ranges(batch):
        begin, end = max(part.begin, chunk.token_start), min(part.end, chunk.token_stop)
        if begin >= end:
            continue
        rows = slice(begin - part.begin, end - part.begin)
        starts, stops = ((ends[rows] + part.start).tolist() for ends in (part.mask.starts, part.mask.stops))
        if max(stops) > 0:
            yield _Run(request=part.request, begin=begin, end=end, stops=stops, starts=starts if any(starts) else None)


def _score_query(iq: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, row: torch.Tensor) -> None:
    """Write row [keys] of one query iq [heads, dim]: with the many keys in front, its small product runs a sixth faster."""
    heads, span = iq.T.contiguous(), max(1024, _TILE_ELEMENTS // iq.shape[0])
    for start in range(0, keys.shape[0], span):
        products = torch.mm(keys[start : start + span], heads).relu_()
        torch.mv(products, weights, out=row[start : start + span])


def _score_request(iq: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, stops: Sequence[int], rows: torch.Tensor) -> None:
    """Write rows [queries, keys], -inf from each query's stop on."""
    num_queries, num_heads, _ = iq.shape
    if num_queries == 1:
        _score_query(iq[0], weights[0], keys[: stops[0]], rows[0, : stops[0]])
        return
    step = max(1, min(num_queries, _TILE_ELEMENTS // (num_heads * 1024)))
    for begin in range(0, num_queries, step):
        end = min(begin + step, num_queries)
        seen, bound = min(stops[begin:end]), max(stops[begin:end])
        span = max(1024, _TILE_ELEMENTS // (num_heads * (end - begin)))
        flat = iq[begin:end].reshape((end - begin) * num_heads, -1)
        for start in range(0, bound, span):
            stop = min(start + span, bound)
            products = torch.mm(flat, keys[start:stop].T).relu_().unflatten(0, (end - begin, num_heads))
            rows[begin:end, start:stop] = torch.bmm(weights[begin:end, None, :], products).squeeze(1)
        if seen < bound:
            past = torch.arange(seen, bound)[None, :] >= torch.tensor(stops[begin:end])[:, None]
            rows[begin:end, seen:bound].masked_fill_(past, float("-inf"))
