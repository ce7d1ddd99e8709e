"""Which keys a query sees: causality, window, chunk and an explicit choice, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from hal.common.contract.masking import Masking


@cache
def make_mask(masking: Masking) -> Mask:
    """The mask of a layer, the same object for every call."""
    return Mask(rule=masking)


class HiddenBlock(NamedTuple):
    """Columns of a tile and what to add to the scores there: 0, or -inf where a key must not count."""

    columns: slice
    bias: torch.Tensor


def hide(columns: slice, hidden: torch.Tensor) -> HiddenBlock:
    """The block that hides what is True: adding is several times faster than filling under a mask."""
    return HiddenBlock(columns, torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A layer's rule on the keys of one request.

    Positions count from key 0; origin is that key's position in its request, which decides where chunks begin.
    """

    rule: Masking
    origin: int = 0

    def may_see_nothing(self, first: int) -> bool:
        """Whether a query at a position from first on may see no key at all."""
        return not self.rule.causal or first < 0

    def key_range(self, first: int, last: int, num_keys: int) -> tuple[int, int]:
        """The span of keys that any query of positions first..last may see."""
        start, stop = 0, num_keys
        if self.rule.causal:
            stop = min(stop, last + 1)
        if self.rule.window is not None:
            start = max(start, first - self.rule.window + 1)
            if not self.rule.causal:
                stop = min(stop, last + self.rule.window)
        if self.rule.chunk is not None:
            start = max(start, self._run(first) * self.rule.chunk - self.origin)
            stop = min(stop, (self._run(last) + 1) * self.rule.chunk - self.origin)
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
        if self.rule.causal:
            stop = min(stop, first + 1)
        if self.rule.window is not None:
            start = max(start, last - self.rule.window + 1)
            if not self.rule.causal:
                stop = min(stop, first + self.rule.window)
        if self.rule.chunk is not None:
            start = max(start, self._run(last) * self.rule.chunk - self.origin)
            stop = min(stop, (self._run(first) + 1) * self.rule.chunk - self.origin)
        return start, stop

    def _hidden(self, first: int, last: int, start: int, stop: int) -> torch.Tensor:
        queries, keys = torch.arange(first, last + 1)[:, None], torch.arange(start, stop)[None, :]
        distance = queries - keys
        hidden = distance < 0 if self.rule.causal else torch.zeros_like(distance, dtype=torch.bool)
        if self.rule.window is not None:
            hidden |= distance.abs() >= self.rule.window
        if self.rule.chunk is not None:
            hidden |= (queries + self.origin) // self.rule.chunk != (keys + self.origin) // self.rule.chunk
        return hidden

    def _run(self, position: int) -> int:
        return (position + self.origin) // (self.rule.chunk or 1)


def hide_unselected(selected: torch.Tensor, first_key: int, start: int, stop: int) -> HiddenBlock:
    """The block that hides keys a query did not select: selected int32 [queries, width], ids of which first_key is key 0's."""
    # One spare column takes whatever lies outside the tile, and is then cut off.
    bias = torch.full((selected.shape[0], stop - start + 1), float("-inf"))
    column = selected.long() - (first_key + start)
    column = torch.where((column < 0) | (column >= stop - start), stop - start, column)
    bias.scatter_(1, column, 0.0)
    return HiddenBlock(slice(0, stop - start), bias[:, :-1])
