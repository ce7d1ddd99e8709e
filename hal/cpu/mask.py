"""Which keys a query sees: causality, window, chunk and an explicit choice, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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

    def hidden(self, first: int, last: int, start: int, stop: int) -> torch.Tensor | None:
        """True where query first..last must not see key start..stop; None where it sees all of them."""
        if not self._hides(first, last, start, stop):
            return None
        distance = torch.arange(first, last + 1)[:, None] - torch.arange(start, stop)[None, :]
        hidden = distance < 0 if self.causal else torch.zeros_like(distance, dtype=torch.bool)
        if self.window is not None:
            hidden |= distance.abs() >= self.window
        if self.chunk is not None:
            runs = (torch.arange(min(first, start), max(last + 1, stop)) + self.origin) // self.chunk
            base = min(first, start)
            hidden |= runs[first - base : last + 1 - base, None] != runs[None, start - base : stop - base]
        return hidden

    def _hides(self, first: int, last: int, start: int, stop: int) -> bool:
        if self.causal and stop - 1 > first:
            return True
        if self.window is not None and (start <= last - self.window or (stop - 1) - first >= self.window):
            return True
        if self.chunk is None:
            return False
        return len({self._run(position) for position in (first, last, start, stop - 1)}) > 1

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
