"""Which positions the queries of a layer see, as a rule that layers share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hal.config import LayerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """Which positions a layer's query sees; always one run of them."""

    causal: bool = True
    window: int | None = None
    chunk: int | None = None


# What an indexer scores: everything up to the query itself.
INDEX_RULE = KeyRule()


def key_rule(layer: LayerShape) -> KeyRule:
    """The rule of a layer's attention over pages."""
    return KeyRule(causal=layer.causal, window=layer.window, chunk=layer.chunk)


def list_rules(layers: Iterable[LayerShape]) -> tuple[KeyRule, ...]:
    """The rules that layers are asked by, once each: indexers see everything, and what they leave needs no other rule."""
    kinds = ("attention", "mla")
    rules = [INDEX_RULE if layer.indexer is not None else key_rule(layer) for layer in layers if layer.kind in kinds]
    return tuple(dict.fromkeys(rules))
