"""What a config class makes of the names and switches that a file may use: found by building it and comparing.

A class may take a field under an older name, compute one from another (half a window), rewrite one while a switch is on, or
lay its layers out by a period. All of it is learnt from instances, none of it written down by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .kinds import meaning
from .known_types import Computed, Period
from .names import FIELDS

Build = Callable[..., Any]

SAMPLES = (96, 160, 224)
FORMS = ((1, 0), (1, 1), (1, -1), (2, 0), (2, 1))
"""Divisor and addend of every relation that a class of transformers has."""

TIED = "tie_word_embeddings"
SWITCH_VALUES = (True, "all")
PERIODS = (7, 5)
LAYERS = 12
LAYER_COUNTS = (24, 17, 6)
SIZES = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "sliding_window")
"""Numbers that a class may take under another name or compute."""


def find_computed(build: Build, own: Iterable[str], aliases: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """By field, how the class makes it from other fields; aliases: the class's further names for its fields."""
    plain = build()
    found: dict[str, list[Computed]] = {}
    for name in sorted(own):
        if plain is None:
            break
        for target, rule in _relations(build, plain, name, aliases):
            if rule not in found.setdefault(target, []):
                found[target].append(rule)
    return {target: [_compact(rule) for rule in rules] for target, rules in found.items()}


def _relations(build: Build, plain: Any, name: str, aliases: dict[str, str]) -> Iterator[tuple[str, Computed]]:
    yield from _renamed(name, aliases)
    yield from _from_numbers(build, plain, name)
    yield from _from_flag(build, plain, name)
    yield from _under_switch(build, plain, name)


def _renamed(name: str, aliases: dict[str, str]) -> Iterator[tuple[str, Computed]]:
    """A further name that the class has for a field and no spelling covers."""
    if name not in FIELDS and aliases.get(name) in FIELDS:
        yield aliases[name], Computed(source=name)


def _from_numbers(build: Build, plain: Any, name: str) -> Iterator[tuple[str, Computed]]:
    """Fields that follow from this one by one of FORMS, in every sample."""
    if name in SIZES or not _may_be(plain, name, int):
        return
    first = build(**{name: SAMPLES[0]})
    moved = [target for target in SIZES if _number(first, target) not in (None, _number(plain, target))]
    made = [first, *(build(**{name: size}) for size in SAMPLES[1:])] if moved else []
    for target in moved:
        values = [_number(instance, target) for instance in made]
        for divide, add in FORMS:
            spelled_alike = (divide, add) == (1, 0) and name in FIELDS
            if values == [size // divide + add for size in SAMPLES] and not spelled_alike:
                yield target, Computed(source=name, divide=divide, add=add)


def _from_flag(build: Build, plain: Any, name: str) -> Iterator[tuple[str, Computed]]:
    """Tied embeddings under another name."""
    if name in FIELDS or not _may_be(plain, name, bool):
        return
    if [_attribute(build(**{name: value}), TIED) for value in (False, True)] == [False, True]:
        yield TIED, Computed(source=name)


def _under_switch(build: Build, plain: Any, name: str) -> Iterator[tuple[str, Computed]]:
    """A window that the class rewrites while this switch is on."""
    if name not in FIELDS or _number(plain, "sliding_window") is None or not _may_be(plain, name, (bool, str)):
        return
    for value in SWITCH_VALUES:
        if _number(build(**{name: value}), "sliding_window") in (None, _number(plain, "sliding_window")):
            continue
        changed = [_number(build(sliding_window=size, **{name: value}), "sliding_window") for size in SAMPLES]
        for divide, add in FORMS:
            if changed == [size // divide + add for size in SAMPLES]:
                yield "sliding_window", Computed(source="sliding_window", divide=divide, add=add, switch=name, value=value)


def find_window_turns(build: Build, layers: str) -> dict[str, list[int | None]]:
    """By layer type, the windows that a class gives its layers in turn, None for a stated one and 0 for no window.

    Only types that have several; learnt from several sizes, numbers of layers and orders of layer types.
    """
    made = [(size, build(sliding_window=size, **{layers: count})) for size, count in zip(SAMPLES, LAYER_COUNTS, strict=True)]
    types = _attribute(made[0][1], "layer_types")
    if not isinstance(types, list):
        return {}
    other_order = build(sliding_window=SAMPLES[0], layer_types=types[::-1], **{layers: LAYER_COUNTS[0]})
    windows = [_windows(instance, size) for size, instance in (*made, (SAMPLES[0], other_order)) if instance is not None]
    turns = {kind: _shortest_cycle(items) for kind, items in windows[0].items() if len({*items}) > 1}
    return {
        kind: cycle
        for kind, cycle in turns.items()
        if all(item == cycle[turn % len(cycle)] for one in windows for turn, item in enumerate(one.get(kind, ())))
    }


def _windows(instance: Any, stated: int) -> dict[str, list[int | None]]:
    """By layer type, the windows of a config whose layers differ, in their order; None for the stated one, 0 for no window."""
    found: dict[str, list[int | None]] = {}
    if not _attribute(instance, "is_heterogeneous"):
        return found
    for kind, view in zip(instance.layer_types, instance.per_layer_config, strict=True):
        window = _number(view, "sliding_window") or 0
        found.setdefault(meaning(kind, "layer_types"), []).append(None if window == stated else window)
    return found


def _shortest_cycle(items: Sequence[int | None]) -> list[int | None]:
    sizes = range(1, len(items) + 1)
    return next(list(items[:size]) for size in sizes if all(item == items[turn % size] for turn, item in enumerate(items)))


def _may_be(plain: Any, name: str, kind: type | tuple[type, ...]) -> bool:
    """Whether a field's default leaves open that it takes values of this kind."""
    value = _attribute(plain, name)
    return value is None or (isinstance(value, kind) and (kind is not int or not isinstance(value, bool)))


def find_periods(build: Build, own: Iterable[str], lists: Iterable[str], layers: str) -> dict[str, dict[str, Any]]:
    """By list of layers, the field of no rule of the reader that states its period."""
    found: dict[str, dict[str, Any]] = {}
    plain = build(**{layers: LAYERS})
    for name in sorted(set(own) - FIELDS | {"no_rope_layer_interval"} & set(own)):
        first = build(**{name: PERIODS[0], layers: LAYERS}) if _may_be(plain, name, int) and name != layers else None
        moved = [target for target in lists if _list(first, target) != _list(plain, target)] if first is not None else []
        made = [(first, PERIODS[0]), (build(**{name: PERIODS[1], layers: LAYERS}), PERIODS[1])] if moved else []
        for target in moved:
            values = [(_list(instance, target), period) for instance, period in made]
            if any(items is None for items, _ in values) or values[0][0] == values[1][0]:
                continue
            rule = next((rule for rule in _period_rules(name, values) if _holds(rule, values)), None)
            if rule is not None:
                found[target] = _compact(rule)
    return found


def _period_rules(name: str, values: list[tuple[Any, int]]) -> Iterator[Period]:
    items, period = values[0]
    yield Period(source=name, on=items[period - 1], off=items[0])
    yield Period(source=name, on=items[0], off=items[1], from_first=True)


def _holds(rule: Period, values: list[tuple[Any, int]]) -> bool:
    return all(list(rule.expand(period, LAYERS)) == items for items, period in values)


def _list(instance: Any, name: str) -> list[Any] | None:
    value = _attribute(instance, name)
    return list(value) if isinstance(value, (list, tuple)) and len(value) == LAYERS else None


def _number(instance: Any, name: str) -> int | None:
    value = _attribute(instance, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _attribute(instance: Any, name: str) -> Any:
    try:
        return getattr(instance, name, None)
    except RuntimeError:
        return None


def _compact(rule: Any) -> dict[str, Any]:
    """The rule without what its class fills in."""
    defaults = {item.name: item.default for item in dataclasses.fields(rule)}
    return {name: value for name, value in dataclasses.asdict(rule).items() if value != defaults[name]}
