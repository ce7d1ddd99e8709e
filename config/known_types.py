"""What transformers fills in for the types it knows: class defaults, renamed fields, nested types, layer patterns.

The data is generated (`python -m hal.config.generate`) into known_types.jsonl, one type per line; only the line that is
asked for is parsed. It holds what a config.json leaves out, so that a file gives the shape of the object built from it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_name("known_types.jsonl")
WINDOWED = "layer_types with use_sliding_window"
"""The pattern of layer types that a class lays out while windows are switched on."""


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
class Computed:
    """A field as a class makes it from `source`: divided, then added to; with a switch, only while that has the value."""

    source: str
    divide: int = 1
    add: int = 0
    switch: str = ""
    value: object = None

    def apply(self, value: object) -> object:
        """What the class makes of a value; a value that is no number stays as it is."""
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return value // self.divide + self.add if is_number else value  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A list of layers that follows from a stated period: every n-th layer is `on`, counted from the first or up to the n-th."""

    source: str
    on: object
    off: object
    from_first: bool = False

    def expand(self, period: int, num_layers: int) -> tuple[object, ...]:
        """The entries of that many layers."""
        shift = 0 if self.from_first else 1
        return tuple(self.off if (layer + shift) % period else self.on for layer in range(num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """One config class of transformers.

    fields: class defaults; renamed: attribute_map; nested: the type of each sub-config; patterns: lists that follow from the
    number of layers; by_kind: values of layers of one type that differ from the model's; facts: what only the model code says.
    windows: by layer type, the windows that its layers take in turn, None for the stated one and 0 for none. computed: how a
    class makes a field from another one, or from itself under a switch; periods: the fields that state the period of a pattern.
    unread: fields that the model's attention code reads and hal does not, with their defaults; silent: the class's further
    fields that attention code does not read.
    """

    fields: Mapping[str, object] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    by_kind: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    windows: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    computed: Mapping[str, tuple[Computed, ...]] = field(default_factory=dict)
    periods: Mapping[str, Period] = field(default_factory=dict)
    unread: Mapping[str, object] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()


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
    parts = {key: entry[key] for key in ("fields", "renamed", "nested", "by_kind", "facts", "unread", "windows") if key in entry}
    computed = {key: tuple(Computed(**rule) for rule in rules) for key, rules in entry.get("computed", {}).items()}
    periods = {key: Period(**rule) for key, rule in entry.get("periods", {}).items()}
    return KnownType(patterns=patterns, computed=computed, periods=periods, silent=frozenset(entry.get("silent", ())), **parts)


def _pattern(parts: Mapping[str, list[object]]) -> Pattern:
    lists = {part: tuple(parts.get(part, ())) for part in ("head", "cycle", "tail")}
    return Pattern(**lists, backward="backward" in parts)
