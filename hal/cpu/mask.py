"""Which keys a query sees: causality, window, chunk and an explicit choice, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from .checks import check_mask


@cache
def make_mask(causal: bool, window: int | None, chunk: int | None) -> Mask:
    """The mask of a layer, the same object for every call; InputError for a window or chunk below 1."""
    check_mask(window, chunk)
    return Mask(causal=causal, window=window, chunk=chunk)


class HiddenBlock(NamedTuple):
    """Columns of a tile and what to add to the scores there: 0, or -inf where a key must not count."""

    columns: slice
    bias: torch.Tensor


def hide(columns: slice, hidden: torch.Tensor) -> HiddenBlock:
    """The block that hides what is True: adding is several times faster than filling under a mask."""
    return HiddenBlock(columns, torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A layer's rule. window: keys kept, the query's own included; chunk: only keys of the query's own run of that length.

    Positions count from key 0; origin is that key's position in its request, which decides where chunks begin.
    """

    causal: bool
    window: int | None
    chunk: int | None
    origin: int = 0

    def may_see_nothing(self, first: int) -> bool:
        """Whether a query at a position from first on may see no key at all."""
        return not self.causal or first < 0

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
            hide(slice(low - start, high - start), self._hidden(first, last, low, high)) for low, high in spans if low < high
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


def hide_unselected(selected: torch.Tensor, first_key: int, start: int, stop: int) -> HiddenBlock:
    """The block that hides keys a query did not select: selected int32 [queries, width], ids of which first_key is key 0's."""
    # One spare column takes whatever lies outside the tile, and is then cut off.
    bias = torch.full((selected.shape[0], stop - start + 1), float("-inf"))
    column = selected.long() - (first_key + start)
    column = torch.where((column < 0) | (column >= stop - start), stop - start, column)
    bias.scatter_(1, column, 0.0)
    return HiddenBlock(slice(0, stop - start), bias[:, :-1])
