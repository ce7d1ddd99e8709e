"""What transformers fills in for the types it knows: class defaults, renamed fields, nested types, layer patterns.

The data is generated (`python -m hal.config.generate`) into known_types.jsonl, one type per line; only the line that is
asked for is parsed. It holds what a config.json leaves out, so that a file gives the shape of the object built from it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_name("known_types.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A list with one entry per layer, for any number of layers: a head, a repeated cycle, a tail; backward: from the last."""

    head: tuple[object, ...] = ()
    cycle: tuple[object, ...] = ()
    tail: tuple[object, ...] = ()
    backward: bool = False

    def expand(self, num_layers: int) -> tuple[object, ...]:
        """The entries of that many layers; where the parts do not all fit, the tail wins, then the head."""
        return tuple(reversed(self._forward(num_layers))) if self.backward else self._forward(num_layers)

    def _forward(self, num_layers: int) -> tuple[object, ...]:
        tail = self.tail[max(0, len(self.tail) - num_layers) :]
        front = num_layers - len(tail)
        head = self.head[:front]
        body = tuple(self.cycle[index % len(self.cycle)] for index in range(front - len(head))) if self.cycle else ()
        return head + body + tail


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """One config class of transformers.

    fields: class defaults; renamed: attribute_map; nested: the type of each sub-config; patterns: lists that follow from the
    number of layers; by_kind: values of layers of one type that differ from the model's; facts: what only the model code says.
    """

    fields: Mapping[str, object] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    by_kind: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


NOTHING = KnownType()


@functools.cache
def _text() -> str:
    return "\n" + DATA.read_text(encoding="utf-8")


@functools.cache
def known_type(name: str) -> KnownType:
    """What is known of a type, or an empty record for a type transformers does not have."""
    text = _text()
    start = text.find(f'\n{{"type": {json.dumps(name)}, ')
    if start < 0:
        return NOTHING
    entry = json.loads(text[start + 1 : text.index("\n", start + 1)])
    patterns = {key: _pattern(parts) for key, parts in entry.get("patterns", {}).items()}
    parts = {key: entry[key] for key in ("fields", "renamed", "nested", "by_kind", "facts") if key in entry}
    return KnownType(patterns=patterns, **parts)


def _pattern(parts: Mapping[str, list[object]]) -> Pattern:
    lists = {part: tuple(parts.get(part, ())) for part in ("head", "cycle", "tail")}
    return Pattern(**lists, backward="backward" in parts)
