"""An engine whose oracle sees what the quantised caches hold, decoded byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import hal
from hal.testing import reference

from .engine import Engine, Running, Step

_PARTS = {"k": 0, "v": 1, "latent": 0, "rope": 1, "kv": 0}


@dataclass(slots=True, kw_only=True)
class Decoded(Running):
    """A request whose history is read back from its pages by the slow decoder.

    keeps_new: in a step that brings several, the newest tokens are as they were given; a lone one is read from the cache.
    """

    attention: hal.Attention
    keeps_new: bool = False

    def history(self, key: Any) -> torch.Tensor:
        """What the pages hold under (layer id, part), float64, one row per position; what was given of any other part."""
        layer_id, part = key[0], key[-1]
        if part not in _PARTS:
            return torch.cat(self.cached[key]).double()
        rows = self.decode(layer_id, self.length)[_PARTS[part]]
        newest = self.cached[key][-1]
        if self.keeps_new and len(newest) > 1:
            rows[-len(newest) :] = newest
        return rows

    def decode(self, key: Any, count: int) -> tuple[torch.Tensor, ...]:
        """The first `count` rows of one of the caches, as parts."""
        return reference.read_request(self.attention.caches[key], self.pages, count)


class QuantisedEngine(Engine):
    """Whole numbers up to 2 come as multiples of 224: as index keys they are exact in either variant, and so are their scores."""

    keeps_new = False

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return super().integers(low, high, *shape) * 224

    def schedule(self, step: Step, **batch: Any) -> hal.Batch:
        for name, _ in step:
            self.requests.setdefault(name, Decoded(attention=self.attention, keeps_new=self.keeps_new))
        return super().schedule(step, **batch)
