"""Which keys the queries of a layer see and how their scores are capped, as one value that every call takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hal.config import LayerShape

from .errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """A layer's rule on keys and scores; what a query may see is always one run of positions.

    window: keys kept, the query's own included, on both sides where it is not causal. chunk: only keys of the query's own run
    of that length. softcap: scores become softcap * tanh(score / softcap). InputError for one of them that is not above 0.
    """

    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        # Most layers have none of them, and a value is made for calls of its own, too.
        if self.window is self.chunk is self.softcap is None:
            return
        for name, limit in (("window", self.window), ("chunk", self.chunk), ("softcap", self.softcap)):
            if limit is not None and not limit > 0:
                raise InputError(f"{name} is {limit}; expected a number above 0, or None for none")

    @property
    def sight(self) -> Masking:
        """The same keys with scores as they are: layers whose caps differ see alike."""
        return self if self.softcap is None else replace(self, softcap=None)


CAUSAL = Masking()
"""Everything up to the query itself, as an indexer scores it."""


def masking_of(layer: LayerShape) -> Masking:
    """The rule of a layer's attention over pages."""
    return Masking(causal=layer.causal, window=layer.window, chunk=layer.chunk, softcap=layer.softcap)


def list_sights(layers: Iterable[LayerShape]) -> tuple[Masking, ...]:
    """The rules that layers are asked by, once each: indexers see everything, and what they leave needs no other rule."""
    kinds = ("attention", "mla")
    sights = [CAUSAL if layer.indexer is not None else masking_of(layer).sight for layer in layers if layer.kind in kinds]
    return tuple(dict.fromkeys(sights))
