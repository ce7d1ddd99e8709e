"""What a choice of keys is a choice of: layers of one kind can share it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hal.config import LayerShape


class ChoiceKind(NamedTuple):
    """The width of a row of chosen ids, how many an indexer picks at most, and the tokens that one id stands for."""

    width: int
    topk: int
    tokens_per_id: int


def choice_kind(layer: LayerShape) -> ChoiceKind | None:
    """The kind of a layer's choice, None where no indexer chooses for it."""
    indexer = layer.indexer
    # Of pools the tokens are chosen at last; of compressed entries the entries themselves.
    return None if indexer is None else ChoiceKind(indexer.width, indexer.topk, layer.compress_ratio or 1)


def list_kinds(layers: Iterable[LayerShape]) -> tuple[ChoiceKind, ...]:
    """The kinds of some layers, once each, in order."""
    return tuple(sorted({kind for kind in map(choice_kind, layers) if kind is not None}))
