"""Which keys a query sees: causality, window, chunk and an explicit choice, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class HiddenBlock(NamedTuple):
    """Columns of a tile and a bool tensor, True where a score there must not count."""

    columns: slice
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A layer's rule. window: keys kept, the query's own included; chunk: only keys of the query's own run of that length.

    Positions count from key 0; origin is that key's position in its request, which decides where chunks begin.
    """

    causal: bool
    window: int | None
    chunk: int | None
    origin: int = 0

    def key_range(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        """The span of keys that any query of positions first..last may see."""
        start, stop = 0, num_keys
        if self.causal:
            stop = min(stop, last + 1)
        if self.window is not None:
            start = max(start, first - self.window + 1)
            if not self.causal:
                stop = min(stop, last + self.window)
        if self.chunk is not None:
            start = max(start, self._run(first) * self.chunk - self.origin)
            stop = min(stop, (self._run(last) + 1) * self.chunk - self.origin)
        return start, max(start, stop)

    def hidden_blocks(self, first: int, last: int, start: int, stop: int) -> tuple[HiddenBlock, ...]:
        """The columns of keys start..stop that not every query first..last sees, each block with what is hidden in it."""
        seen_from, seen_to = self._seen_by_all(first, last, start, stop)
        spans = [(start, stop)] if seen_from >= seen_to else [(start, seen_from), (seen_to, stop)]
        return tuple(
            HiddenBlock(slice(low - start, high - start), self._hidden(first, last, low, high))
            for low, high in spans
            if low < high
        )

    def _seen_by_all(self, first: int, last: int, start: int, stop: int) -> tuple[int, int]:
        """The span of keys that every query of positions first..last sees."""
        if self.causal:
            stop = min(stop, first + 1)
        if self.window is not None:
            start = max(start, last - self.window + 1)
            if not self.causal:
                stop = min(stop, first + self.window)
        if self.chunk is not None:
            start = max(start, self._run(last) * self.chunk - self.origin)
            stop = min(stop, (self._run(first) + 1) * self.chunk - self.origin)
        return start, stop

    def _hidden(self, first: int, last: int, start: int, stop: int) -> torch.Tensor:
        queries, keys = torch.arange(first, last + 1)[:, None], torch.arange(start, stop)[None, :]
        distance = queries - keys
        hidden = distance < 0 if self.causal else torch.zeros_like(distance, dtype=torch.bool)
        if self.window is not None:
            hidden |= distance.abs() >= self.window
        if self.chunk is not None:
            hidden |= (queries + self.origin) // self.chunk != (keys + self.origin) // self.chunk
        return hidden

    def _run(self, position: int) -> int:
        return (position + self.origin) // (self.chunk or 1)


def hide_unselected(selected: torch.Tensor, first_key: int, start: int, stop: int) -> torch.Tensor:
    """True where a query did not select a key: selected int32 [queries, width] holds request-local ids, key 0 being first_key."""
    hidden = torch.ones(selected.shape[0], stop - start + 1, dtype=torch.bool)
    column = selected.long() - (first_key + start)
    # Whatever lies outside the tile lands in one spare column, which is then cut off.
    column = torch.where((column < 0) | (column >= stop - start), stop - start, column)
    hidden.scatter_(1, column, False)
    return hidden[:, :-1]
