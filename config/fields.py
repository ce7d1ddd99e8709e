"""The fields of one model: overrides, then the text config, then the levels around it, with conflicts noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from .errors import ConfigError
from .names import spellings
from .source import MISSING, Level, PerLayerValues
from .values import Convert, as_count, as_flag, as_number, as_text

T = TypeVar("T")


class Fields:
    """What the rules read from: every answer comes from the innermost level that has a usable value.

    levels run from the text config outwards to the root.
    """

    __slots__ = ("encoder_decoder", "levels", "warnings")

    def __init__(self, levels: Sequence[Level], overrides: Mapping[str, object]) -> None:
        self.levels = (Level(overrides, "overrides"), *levels)
        self.warnings: list[str] = []
        self.encoder_decoder = False
        self.encoder_decoder = self.flag("is_encoder_decoder") is True

    def warn(self, text: str) -> None:
        """Note something odd that is served nevertheless; the same text is kept once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def stated(self, field: str) -> Iterator[tuple[str, object]]:
        """Where and what, for each level that states the field under some spelling, from the inside out."""
        names = spellings(field, self.encoder_decoder)
        for level in self.levels:
            for name in names:
                value = level.read(name)
                if value is not MISSING:
                    yield level.describe(name), value

    def raw(self, field: str) -> object:
        """The innermost value stated, None included; MISSING where no level has one."""
        return next((value for _, value in self.stated(field)), MISSING)

    def first(self, field: str, convert: Convert[T]) -> T | None:
        """The innermost usable value. A different usable value further out is a warning."""
        chosen: T | None = None
        source = ""
        for where, value in self.stated(field):
            if chosen is None:
                chosen, source = convert(value, where), where
            elif source.startswith("overrides"):
                break
            elif _level_of(where) != _level_of(source) and _usable_and_other(value, convert, chosen):
                self.warn(f"{where} is {value!r} but {source} is {chosen!r}; the text config's value is used")
        return chosen

    def count(self, field: str) -> int | None:
        """A positive whole number, or None where it is unset."""
        return self.first(field, as_count)

    def require_count(self, field: str) -> int:
        """A positive whole number. ConfigError: it is unset on every level."""
        found = self.count(field)
        if found is None:
            raise ConfigError(self.absent(field))
        return found

    def number(self, field: str) -> float | None:
        """A positive finite number, or None where it is unset."""
        return self.first(field, as_number)

    def flag(self, field: str) -> bool | None:
        """A boolean, or None where it is unset."""
        return self.first(field, as_flag)

    def text(self, field: str) -> str | None:
        """A string that is not empty, or None where it is unset."""
        return self.first(field, as_text)

    def sequence(self, field: str) -> tuple[object, ...] | None:
        """A list's items, or None where it is unset or not a list."""
        value = self.raw(field)
        return tuple(value) if isinstance(value, (list, tuple)) else None

    def nested(self, field: str) -> Level | None:
        """A group of fields under one name (rope_parameters, attn_config) from the innermost level that has it, or None."""
        for level in self.levels:
            child = level.child(field)
            if child is not None:
                return child
            if level.read(field) is not MISSING:
                return None
        return None

    def absent(self, field: str) -> str:
        """The message for a field that is needed and unset everywhere, with the places looked and what they hold."""
        found = [f"{where}={value!r}" for where, value in self.stated(field)]
        places = " and ".join(level.path or "the root" for level in self.levels[1:])
        names = ", ".join(spellings(field, self.encoder_decoder))
        held = f"found {', '.join(found)}" if found else "found nothing"
        return f"{field} is unset: looked in {places} for {names}; {held}. Expected a positive whole number; give it in the config or in overrides"


def _level_of(where: str) -> str:
    return where.rpartition(".")[0]


def _usable_and_other(value: object, convert: Convert[T], chosen: T) -> bool:
    """Whether an outer value is a usable one that differs; an unusable outer value is nobody's concern."""
    try:
        other = convert(value, "")
    except ConfigError:
        return False
    return other is not None and other != chosen


def per_layer(value: object, layer_id: int, kind: str, where: str) -> object:
    """One layer's share of a value: a list's item, a mapping's entry for the layer's type, or the value itself."""
    if isinstance(value, (list, tuple, PerLayerValues)):
        if layer_id >= len(value):
            raise ConfigError(f"{where} has {len(value)} entries, layer {layer_id} needs one more; expected one per layer")
        return value[layer_id]
    if isinstance(value, Mapping):
        return value.get(kind)
    return value
