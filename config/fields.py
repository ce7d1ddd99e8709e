"""The fields of one model: overrides, then the text config, then the levels around it, with conflicts noted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from .errors import ConfigError
from .known_types import NOTHING, KnownType
from .names import spellings
from .source import MISSING, Level
from .values import Convert, as_count, as_flag, as_number, as_text

T = TypeVar("T")

OUTER = frozenset({"dtype", "is_encoder_decoder", "tie_word_embeddings", "vocab_size", "max_position_embeddings"})
"""What a level around the text config may say for it even where transformers' class of the text config is complete."""


class Entry(NamedTuple):
    """One value found for a field: where, what, and whether the source states it or its type fills it in."""

    where: str
    value: object
    stated: bool


class Fields:
    """What the rules read from: every answer comes from the innermost level that has a usable value.

    levels run from the text config outwards to the root.
    """

    __slots__ = ("_cache", "encoder_decoder", "known", "levels", "text_level", "warnings")

    def __init__(self, levels: Sequence[Level], overrides: Mapping[str, object]) -> None:
        self.levels = (Level(overrides, "overrides"), *levels)
        self.text_level = levels[0]
        self.known: KnownType = levels[0].known
        self.warnings: list[str] = []
        self._cache: dict[tuple[str, object], object] = {}
        self.encoder_decoder = False
        self.encoder_decoder = self.flag("is_encoder_decoder") is True
        self._cache.clear()

    def warn(self, text: str) -> None:
        """Note something odd that is served nevertheless; the same text is kept once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def entries(self, field: str) -> Iterator[tuple[Level, Iterator[Entry]]]:
        """Level by level from the inside out, what each has for the field; further spellings are read only when asked for."""
        names = spellings(field, self.encoder_decoder)
        for level in self.levels:
            found = self._level_entries(level, names)
            first = next(found, None)
            if first is not None:
                yield level, itertools.chain([first], found)

    def _level_entries(self, level: Level, names: Sequence[str]) -> Iterator[Entry]:
        """Stated values by spelling, then what the type fills in; in an encoder-decoder both together, spelling by spelling."""
        present = False
        for name in names:
            value = MISSING if present and level.computes(name) else level.given(name)
            if value is not MISSING:
                present = True
                yield Entry(level.describe(level.origin(name)), value, True)
            elif self.encoder_decoder and (value := level.default(name)) is not MISSING:
                yield Entry(level.describe(name), value, False)
        if not present and not self.encoder_decoder:
            for name in names:
                if (value := level.default(name)) is not MISSING:
                    yield Entry(level.describe(name), value, False)

    def entry(self, field: str) -> Entry | None:
        """The innermost entry of a field, None and other unset values included; a class default only where nothing is stated."""
        key = (field, "entry")
        if key not in self._cache:
            self._cache[key] = self._entry(field)
        return self._cache[key]  # type: ignore[return-value]

    def _entry(self, field: str) -> Entry | None:
        fallback: Entry | None = None
        names = spellings(field, self.encoder_decoder)
        for level, found in self.entries(field):
            entry = next(found)
            if self._speaks_of_itself(level, field, names):
                continue
            if entry.stated or self.encoder_decoder:
                return entry
            if fallback is None and self._fills_in(level, field):
                fallback = entry
        return fallback

    def raw(self, field: str) -> object:
        """The innermost value, None included; MISSING where no level has one."""
        entry = self.entry(field)
        return MISSING if entry is None else entry.value

    def states(self, field: str) -> bool:
        """Whether the innermost value comes from the source rather than from its type's defaults."""
        entry = self.entry(field)
        return entry is not None and entry.stated

    def first(self, field: str, convert: Convert[T]) -> T | None:
        """The innermost usable value. A different usable value stated further out is a warning."""
        key = (field, convert)
        if key not in self._cache:
            self._cache[key] = self._first(field, convert)
        return self._cache[key]  # type: ignore[return-value]

    def _speaks_of_itself(self, level: Level, field: str, names: Sequence[str]) -> bool:
        """Whether what a level around a text config states is of its own class: a detector's heads beside those of its text."""
        # Whether there is an encoder beside it every class says for itself.
        is_shared = field in OUTER and field != "is_encoder_decoder"
        if is_shared or level in (self.levels[0], self.text_level) or self.known is NOTHING:
            return False
        own = level.known.fields.keys() | level.known.silent | level.known.renamed.keys()
        return not own.isdisjoint(names)

    def _fills_in(self, level: Level, field: str) -> bool:
        """Whether a level's class defaults may give this field: around a text config whose class is complete, for few fields."""
        return self.known is NOTHING or field in OUTER or level is self.text_level

    def _first(self, field: str, convert: Convert[T]) -> T | None:
        chosen: T | None = None
        source = ""
        defaults: list[Entry] = []
        names = spellings(field, self.encoder_decoder)
        for level, found in self.entries(field):
            if chosen is not None:
                if level is not self.levels[0] and not source.startswith("overrides") and field != "is_encoder_decoder":
                    self._note_conflict(next(found), source, chosen, convert)
                continue
            if self._speaks_of_itself(level, field, names):
                continue
            for entry in found:
                if not (entry.stated or self.encoder_decoder):
                    if self._fills_in(level, field):
                        defaults.append(entry)
                    continue
                if level is self.levels[0] and entry.value is None:
                    return None
                chosen = convert(entry.value, entry.where)
                if chosen is not None:
                    source = entry.where
                    break
                if level is self.levels[0]:
                    accepted = "expected a usable value, or None to take the field away"
                    raise ConfigError(f"{entry.where} is {entry.value!r}, which says nothing; {accepted}")
        if chosen is None:
            return next((value for entry in defaults if (value := convert(entry.value, entry.where)) is not None), None)
        if defaults and field not in OUTER:
            self._note_default(defaults[0], source, chosen, convert)
        return chosen

    def _note_default(self, default: Entry, source: str, chosen: T, convert: Convert[T]) -> None:
        """A warning where a value stated further out is used in place of what the class of the text config would fill in."""
        filled_in = convert(default.value, default.where)
        if filled_in is not None and filled_in != chosen:
            self.warn(
                f"{default.where} is not stated; {chosen!r} is used, which {source} states, "
                f"and not the class default {filled_in!r}"
            )

    def _note_conflict(self, outer: Entry, source: str, chosen: T, convert: Convert[T]) -> None:
        if not outer.stated:
            return
        try:
            other = convert(outer.value, outer.where)
        except ConfigError:
            return
        if other is not None and other != chosen:
            self.warn(f"{outer.where} is {other!r} but {source} is {chosen!r}; the inner value is used")

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
        """A list's items, or None where it is unset or empty. ConfigError: it is set to something else than a list."""
        entry = self.entry(field)
        if entry is None or entry.value is None or entry.value == "" or entry.value is False:
            return None
        if not isinstance(entry.value, (list, tuple)):
            raise ConfigError(f"{entry.where} is {entry.value!r}, expected a list")
        return tuple(entry.value) or None

    def groups(self, field: str) -> tuple[Level, ...]:
        """A list of groups of fields, one level each; empty where it is unset."""
        key = (field, "groups")
        if key not in self._cache:
            items = self.sequence(field) or ()
            self._cache[key] = tuple(Level(item, f"{field}[{index}]") for index, item in enumerate(items))
        return self._cache[key]  # type: ignore[return-value]

    def layer_group(self, layer_id: int) -> Level | None:
        """What a mapping `per_layer_config` states for one layer, None where it states nothing.

        ConfigError: a key that is no layer number.
        """
        return self._layer_groups().get(layer_id)

    def layer_groups(self) -> tuple[Level, ...]:
        """What a mapping `per_layer_config` states, layer by layer."""
        return tuple(self._layer_groups().values())

    def _layer_groups(self) -> dict[int, Level]:
        key = ("per_layer_config", "layers")
        if key not in self._cache:
            layers = self.raw("per_layer_config")
            items = layers.items() if isinstance(layers, Mapping) else ()
            self._cache[key] = {_layer_number(name): Level(given, f"per_layer_config[{name}]") for name, given in items}
        return self._cache[key]  # type: ignore[return-value]

    def nested(self, field: str) -> Level | None:
        """A group of fields under one name (rope_parameters, attn_config) from the innermost level that states it, or None.

        Where no level does, what a type fills in.
        """
        key = (field, "nested")
        if key not in self._cache:
            names = spellings(field)
            stated = ((level, name) for level in self.levels for name in names if level.states(name))
            every = itertools.chain(stated, ((level, name) for level in self.levels for name in names))
            self._cache[key] = next((child for level, name in every if (child := level.child(name)) is not None), None)
        return self._cache[key]  # type: ignore[return-value]

    def absent(self, field: str) -> str:
        """The message for a field that is needed and unset everywhere, with the places looked and what they hold."""
        found = [f"{entry.where}={entry.value!r}" for _, entries in self.entries(field) for entry in entries]
        places = " and ".join(level.path or "the root" for level in self.levels[1:])
        names = ", ".join(spellings(field, self.encoder_decoder))
        held = f"found {', '.join(found)}" if found else "found nothing"
        accepted = "expected a positive whole number; state it in the config or in overrides"
        return f"{field} is unset: looked in {places} for {names}; {held}; {accepted}"


def _layer_number(name: object) -> int:
    if isinstance(name, int) or (isinstance(name, str) and name.isdecimal()):
        return int(name)
    raise ConfigError(f"per_layer_config has the key {name!r}, expected layer numbers")
