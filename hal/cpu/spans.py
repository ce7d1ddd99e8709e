"""Where each request of a paged batch finds the keys that its queries see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from hal.common.contract.call_values import KVCache, PagedBatch

from .cache import locate_known, locate_request
from .checks import check_batch
from .mask import Mask
from .ranges import RangeMask, split_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One request's queries begin..end and the cache rows of the keys that any of them sees; rows None: none does.

    mask: which of these keys each query sees; first: the first query's position counted from the first of them.
    """

    begin: int
    end: int
    first: int
    rows: slice | torch.Tensor | None
    mask: Mask | RangeMask


def find_spans(cache: KVCache, batch: PagedBatch, mask: Mask, num_tokens: int) -> tuple[Span, ...]:
    """The spans of a batch; layers that share pages and mask share them, where the batch keeps a memo."""
    if batch.memo is None:
        return _make_spans(cache, batch, mask, num_tokens)
    key = ("spans", mask, cache.block_size, cache.page_stride, num_tokens)
    spans = batch.memo.get(key)
    if not isinstance(spans, tuple):
        spans = batch.memo[key] = _make_spans(cache, batch, mask, num_tokens)
    return spans


def _make_spans(cache: KVCache, batch: PagedBatch, mask: Mask, num_tokens: int) -> tuple[Span, ...]:
    check_batch(batch)
    starts = batch.query_start_loc.tolist()
    found = _from_positions(cache, batch, mask, starts) if batch.key_stops is None else _from_ranges(cache, batch)
    spans = [span for span in found if span.begin < num_tokens]
    # Query rows before the first request and past the last belong to nobody and see no key.
    for begin, end in ((0, starts[0]), (starts[-1], num_tokens)):
        if begin < end:
            spans.append(Span(begin=begin, end=end, first=0, rows=None, mask=mask))
    return tuple(spans)


def _from_positions(cache: KVCache, batch: PagedBatch, mask: Mask, starts: Sequence[int]) -> Iterator[Span]:
    for request, length in enumerate(batch.seq_lens.tolist()):
        begin, end = starts[request], starts[request + 1]
        if begin >= end:
            continue
        if not length:
            yield Span(begin=begin, end=end, first=0, rows=None, mask=mask)
            continue
        first = length - (end - begin)
        start, stop = mask.key_range(first, length - 1, length)
        rows = locate_request(cache, batch, request, start, stop)
        if rows is None:
            for token in range(begin, end):
                position = first + token - begin
                yield _span_of_one(cache, batch, mask, request, token, *mask.key_range(position, position, length))
            continue
        is_lone = end - begin == 1
        yield Span(begin=begin, end=end, first=first - start, rows=rows, mask=mask if is_lone else replace(mask, origin=start))


def _from_ranges(cache: KVCache, batch: PagedBatch) -> Iterator[Span]:
    for part in split_ranges(batch):
        if part.start == part.stop:
            yield Span(begin=part.begin, end=part.end, first=0, rows=None, mask=part.mask)
            continue
        rows = locate_request(cache, batch, part.request, part.start, part.stop)
        if rows is not None:
            yield Span(begin=part.begin, end=part.end, first=0, rows=rows, mask=part.mask)
            continue
        starts, stops = ((ends + part.start).tolist() for ends in (part.mask.starts, part.mask.stops))
        for token in range(part.begin, part.end):
            shown = starts[token - part.begin], stops[token - part.begin]
            yield _span_of_one(cache, batch, part.mask, part.request, token, *shown)


def _span_of_one(
    cache: KVCache, batch: PagedBatch, mask: Mask | RangeMask, request: int, token: int, start: int, stop: int
) -> Span:
    """The span of a lone query whose request has keys on missing pages: the others of start..stop, all of which it sees."""
    rows = locate_known(cache, batch, request, start, stop)
    rows = rows[rows >= 0]
    return Span(begin=token, end=token + 1, first=0, rows=rows if rows.numel() else None, mask=mask)
