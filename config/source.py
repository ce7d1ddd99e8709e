"""Uniform access to one level of a config, whatever it is made of; each field is taken from the source once."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Final

from .detach import attributes, detach
from .errors import ConfigError
from .known_types import NOTHING, Computed, KnownType, known_type


class _Missing:
    """The type of MISSING."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "absent"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()
_UNREAD: Final = object()
_MOST_BITS = 4096
"""A number beyond it is damage, and Python refuses to write the longest ones out, so that no message could quote them."""

_PLAIN = (str, bytes, int, float, bool, list, tuple, set, frozenset, type(None))


class PerLayerValues(tuple[object, ...]):
    """One value per layer, as read from a heterogeneous config object."""

    __slots__ = ()


class Level:
    """One level of a config: a mapping or any object with attributes.

    A field is read from the source the first time it is asked for and remembered. Nothing is written to the source: of a
    mapping only the keys it has are asked for, and an object is read through a copy of its attributes.
    """

    __slots__ = ("_children", "_keys", "_known", "_nested_type", "_peeked", "_read", "_source", "_views", "path")

    def __init__(self, source: object, path: str = "", nested_type: str | None = None) -> None:
        self._keys = frozenset(source) if isinstance(source, Mapping) else None
        self._source = detach(source) if self._keys is None and not isinstance(source, _PLAIN) else source
        self._nested_type = nested_type
        self._known: KnownType | None = None
        self._views: list[object] | None = None
        self._read: dict[str, object] = {}
        self._peeked: dict[str, object] = {}
        self._children: dict[str, Level | None] = {}
        self.path = path

    @property
    def known(self) -> KnownType:
        """What transformers fills in at this level; empty where the type is not one of its own."""
        if self._known is None:
            name = self._nested_type or self.stated("model_type")
            self._known = known_type(name) if isinstance(name, str) and name else NOTHING
        return self._known

    def stated(self, name: str) -> object:
        """The value the source itself gives, or MISSING.

        ConfigError: the source raises something other than "no such attribute" and has no per-layer configs to ask instead.
        """
        value = self._read.get(name, _UNREAD)
        if value is _UNREAD:
            value = self._read[name] = self.peek(name)
        return value

    def peek(self, name: str) -> object:
        """The same without counting the field as read by a rule; the source is still asked once."""
        if name in self._read:
            return self._read[name]
        if name not in self._peeked:
            value = self._fetch(name)
            if isinstance(value, int) and value.bit_length() > _MOST_BITS:
                raise ConfigError(f"{self.describe(name)} is a whole number of {value.bit_length()} bits, expected one of 32")
            self._peeked[name] = value
        return self._peeked[name]

    def given(self, name: str) -> object:
        """The value that the source gives under this name, or under the one its type has for it; MISSING without either.

        What the type makes of the value, or of another field, unless the source is an object that its class has made.
        """
        known = self._known or self.known
        rule = self._rule(name) if name in known.computed else None
        value = self.stated(name if rule is None else rule.source)
        if value is MISSING and name in known.renamed:
            value = self.stated(known.renamed[name])
        return value if rule is None else rule.apply(value)

    def _rule(self, name: str) -> Computed | None:
        """How the type makes the field from what the source states."""
        rules = () if self.is_built else self.known.computed.get(name, ())
        return next((rule for rule in rules if self._applies(rule, name)), None)

    def _applies(self, rule: Computed, name: str) -> bool:
        if rule.switch:
            return self.read(rule.switch) == rule.value
        return rule.source != name and self.stated(rule.source) not in (MISSING, None)

    def origin(self, name: str) -> str:
        """The name under which the source states what `given` answers."""
        known = self._known or self.known
        if name not in known.computed and name not in known.renamed:
            return name
        rule = self._rule(name)
        if rule is not None and rule.source != name:
            return rule.source
        other = known.renamed.get(name)
        return other if other and self.stated(name) is MISSING and self.stated(other) is not MISSING else name

    def computes(self, name: str) -> bool:
        """Whether the source's class computes this field from others, so that it says nothing of its own."""
        return isinstance(getattr(type(self._source), name, None), property)

    def default(self, name: str) -> object:
        """What transformers fills in where the source gives nothing, or MISSING."""
        known = self._known or self.known
        value = known.fields.get(name, MISSING)
        if value is MISSING and name in known.renamed:
            value = known.fields.get(known.renamed[name], MISSING)
        rule = self._rule(name) if name in known.computed else None
        return value if rule is None or rule.source != name else rule.apply(value)

    def read(self, name: str) -> object:
        """The stated value, else the default, else MISSING."""
        value = self.given(name)
        return self.default(name) if value is MISSING else value

    def _fetch(self, name: str) -> object:
        if self._keys is not None:
            return self._source[name] if name in self._keys else MISSING  # type: ignore[index]
        try:
            return getattr(self._source, name)
        except AttributeError:
            return MISSING
        except Exception as error:  # noqa: BLE001 - a property of a foreign object may raise anything; the cause is kept
            return self._fetch_per_layer(name, error)

    def _fetch_per_layer(self, name: str, error: Exception) -> object:
        """A field that differs by layer cannot be read from a heterogeneous object; its layers' own configs can."""
        try:
            return PerLayerValues(getattr(view, name, None) for view in self._layer_views())
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            message = f"{self.describe(name)} cannot be read: {type(error).__name__}: {error}"
            raise ConfigError(f"{message}. Repair the config object, or pass its config.json") from error

    def _layer_views(self) -> list[object]:
        """The configs of the single layers, made once; TypeError where the source has none."""
        if self._views is None:
            views = self.stated("per_layer_config")
            if isinstance(views, (_Missing, Mapping)):
                raise TypeError("there are no per-layer configs to ask instead")
            self._views = [views[layer] for layer in range(len(views))]  # type: ignore[index,arg-type]
        return self._views

    def child(self, name: str) -> Level | None:
        """The nested config under this name, stated or filled in; None where there is none."""
        self.stated(name)
        return self.peek_child(name)

    def peek_child(self, name: str) -> Level | None:
        """The same without counting the config as read."""
        if name not in self._children:
            self._children[name] = self._make_child(name, self.peek(name))
        return self._children[name]

    def _make_child(self, name: str, value: object) -> Level | None:
        path = f"{self.path}.{name}".lstrip(".")
        nested = self.known.nested.get(name, {})
        kind = str(nested["type"]) if nested else None
        if isinstance(value, Mapping) or not isinstance(value, (*_PLAIN, _Missing, PerLayerValues)):
            level = Level(value, path)
            if kind and (nested["fixed"] or not level.states("model_type")):
                level._known = known_type(kind)
            return level
        if kind and not (value is None and nested.get("optional")):
            return _made_by_class(kind, nested.get("given"), path)
        filled = self.default(name)
        return Level(filled, path) if isinstance(filled, Mapping) and value is MISSING else None

    def states(self, name: str) -> bool:
        """Whether the source itself holds a nested config of this name, rather than the type's default."""
        value = self.stated(name)
        return value is not MISSING and value is not None

    def retyped(self, other: Level) -> Level:
        """This level with the defaults of another's type; what has been read is shared, so nothing is read again."""
        level = Level(self._source, self.path)
        level._read, level._peeked, level._children, level._known = self._read, self._peeked, self._children, other.known
        return level

    @property
    def is_built(self) -> bool:
        """Whether the source is an object of its type's own class, which has translated old names and switches already."""
        return self._keys is None and hasattr(type(self._source), "attribute_map")

    def unread(self) -> Iterator[str]:
        """The fields of the source that no rule has asked for: a mapping's keys, an object's and its class's plain attributes."""
        for name in self.names():
            if name not in self._read:
                yield name
        if self._keys is None and not self.is_built:
            for base in type(self._source).__mro__[:-1]:
                for name, value in vars(base).items():
                    if not name.startswith("_") and isinstance(value, (*_PLAIN, Mapping)) and name not in self._read:
                        yield name

    def names(self) -> tuple[str, ...]:
        """The fields the source is known to have: a mapping's keys, an object's instance attributes."""
        if self._keys is not None:
            return tuple(sorted(key for key in self._keys if isinstance(key, str)))
        return tuple(name for name, _ in attributes(self._source) if not name.startswith("_"))

    def describe(self, name: str) -> str:
        """The field's full name for messages, such as "text_config.head_dim"."""
        return f"{self.path}.{name}" if self.path else name


def _made_by_class(kind: str, given: object, path: str) -> Level:
    """A nested config that only the class around it makes; what that gives it counts as defaults, since no file states it."""
    level = Level({"model_type": kind}, path, kind)
    if isinstance(given, Mapping) and given:
        known = known_type(kind)
        # A list of layers of the class's own counts them, whatever its type's default count is.
        lists = any(isinstance(value, (list, tuple)) for value in given.values())
        own = {name: value for name, value in known.fields.items() if not (lists and name == "num_hidden_layers")}
        level._known = dataclasses.replace(known, fields={**own, **given})
    return level


def open_source(source: object) -> Level:
    """The root level of a config object, mapping, config.json path or model folder.

    ConfigError: there is no file, or no JSON object in it.
    """
    if isinstance(source, (str, os.PathLike)):
        return Level(_load_file(os.fsdecode(source)))
    if isinstance(source, _PLAIN):
        accepted = "a mapping, an object with attributes, a config.json path or a folder"
        raise ConfigError(f"a config is {accepted}; got {type(source).__name__} {source!r}")
    return Level(source)


def _load_file(name: str) -> Mapping[str, object]:
    if os.path.isdir(name):
        name = os.path.join(name, "config.json")
    if os.path.exists(name) and not os.path.isfile(name):
        # A pipe would be waited for.
        raise ConfigError(f"{name} cannot be read: it is not a file. Pass a config.json, or a folder that holds one")
    try:
        with open(name, encoding="utf-8") as file:
            loaded = json.load(file)
    except OSError as error:
        message = f"{name} cannot be read: {error.strerror or error}"
        raise ConfigError(f"{message}. Pass a config.json, or a folder that holds one") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{name} holds a JSON {type(loaded).__name__}, expected an object with the config's fields")
    return loaded
