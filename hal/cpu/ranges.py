"""Queries whose keys are given range by range, as over one DCP rank's share, instead of following from their positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from hal.common.contract.call_values import PagedBatch

from .mask import HiddenBlock, hide


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeMask:
    """Query i of a request sees keys starts[i] to stops[i], int64 counted from key 0; both are 0 where it sees none."""

    starts: torch.Tensor
    stops: torch.Tensor

    def may_see_nothing(self, first: int) -> bool:
        """Whether a query may see no key at all; ranges promise nothing."""
        return True

    def key_range(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        """The span of keys that any of the queries first..last sees."""
        rows = slice(first, last + 1)
        start, stop = int(self.starts[rows].min()), min(num_keys, int(self.stops[rows].max()))
        return start, max(start, stop)

    def hidden_blocks(self, first: int, last: int, start: int, stop: int) -> tuple[HiddenBlock, ...]:
        """The columns of keys start..stop that not every query first..last sees, each block with what is hidden in it."""
        rows = slice(first, last + 1)
        seen_from, seen_to = max(start, int(self.starts[rows].max())), min(stop, int(self.stops[rows].min()))
        spans = [(start, stop)] if seen_from >= seen_to else [(start, seen_from), (seen_to, stop)]
        return tuple(hide(slice(low - start, high - start), self._hidden(rows, low, high)) for low, high in spans if low < high)

    def _hidden(self, rows: slice, start: int, stop: int) -> torch.Tensor:
        keys = torch.arange(start, stop)[None, :]
        return (keys < self.starts[rows, None]) | (keys >= self.stops[rows, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRange:
    """One request's queries begin..end and the keys start..stop that any of them sees, their own ranges counted from start."""

    request: int
    begin: int
    end: int
    start: int
    stop: int
    mask: RangeMask


def split_ranges(batch: PagedBatch) -> Iterator[RequestRange]:
    """The requests of a batch with key ranges that have queries."""
    if batch.key_stops is None:
        return
    stops = batch.key_stops.long()
    starts = torch.zeros_like(stops) if batch.key_starts is None else batch.key_starts.long()
    for request, (begin, end) in enumerate(pairwise(batch.query_start_loc.tolist())):
        if begin >= end:
            continue
        first, last = starts[begin:end], stops[begin:end]
        # An empty range must not widen the span of keys: it may lie anywhere.
        shown = last > first
        start = int(first[shown].min()) if bool(shown.any()) else 0
        stop = int(last[shown].max()) if bool(shown.any()) else 0
        mask = RangeMask(starts=torch.where(shown, first - start, 0), stops=torch.where(shown, last - start, 0))
        yield RequestRange(request=request, begin=begin, end=end, start=start, stop=stop, mask=mask)
