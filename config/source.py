"""Uniform access to one level of a config, whatever it is made of; each field is taken from the source once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Final

from .errors import ConfigError


class _Missing:
    """The type of MISSING."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "absent"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()
_PLAIN = (str, bytes, int, float, bool, list, tuple, set, frozenset, type(None))


class Level:
    """One level of a config: a mapping or any object with attributes, plus defaults for what the source lacks.

    `read` takes a field from the source the first time and remembers the answer. Nothing is written to the source.
    """

    __slots__ = ("_children", "_read", "_source", "defaults", "path")

    def __init__(self, source: object, path: str = "", defaults: Mapping[str, object] | None = None) -> None:
        self._source = source
        self._read: dict[str, object] = {}
        self._children: dict[str, Level | None] = {}
        self.path = path
        self.defaults = defaults or {}

    def read(self, name: str) -> object:
        """The field's value, the default where the source has no such field, or MISSING.

        ConfigError: the source raises something other than "no such attribute" and has no per-layer configs to ask instead.
        """
        value = self.stated(name)
        return self.defaults.get(name, MISSING) if value is MISSING else value

    def stated(self, name: str) -> object:
        """The value as the source itself states it, without defaults."""
        if name not in self._read:
            self._read[name] = self._fetch(name)
        return self._read[name]

    def _fetch(self, name: str) -> object:
        if isinstance(self._source, Mapping):
            try:
                return self._source[name]
            except KeyError:
                return MISSING
        try:
            return getattr(self._source, name)
        except AttributeError:
            return MISSING
        except Exception as error:
            return self._fetch_per_layer(name, error)

    def _fetch_per_layer(self, name: str, error: Exception) -> object:
        """A field that differs by layer cannot be read from a heterogeneous object; its layers' own configs can."""
        views = self._layer_views()
        if views is None:
            raise ConfigError(
                f"{self.describe(name)} cannot be read: {type(error).__name__}: {error}. Repair the config object, or pass its config.json"
            ) from error
        return PerLayerValues([getattr(view, name, None) for view in views])

    def _layer_views(self) -> Sequence[object] | None:
        try:
            views = getattr(self._source, "per_layer_config", None)
            return None if views is None else [views[index] for index in range(len(views))]
        except (AttributeError, TypeError, ValueError, RuntimeError, LookupError):
            return None

    def child(self, name: str) -> Level | None:
        """The nested config under this name, None where there is none."""
        if name not in self._children:
            value = self.read(name)
            nested = isinstance(value, Mapping) or not isinstance(value, (*_PLAIN, _Missing, PerLayerValues))
            self._children[name] = Level(value, f"{self.path}.{name}".lstrip(".")) if nested else None
        return self._children[name]

    def names(self) -> tuple[str, ...]:
        """The fields the source is known to have: a mapping's keys, an object's instance attributes."""
        if isinstance(self._source, Mapping):
            return tuple(key for key in self._source if isinstance(key, str))
        return tuple(name for name in getattr(self._source, "__dict__", {}) if not name.startswith("_"))

    def describe(self, name: str) -> str:
        """The field's full name for messages, such as "text_config.head_dim"."""
        return f"{self.path}.{name}" if self.path else name


class PerLayerValues(tuple[object, ...]):
    """One value per layer, as read from a heterogeneous config object."""

    __slots__ = ()


def open_source(source: object) -> Level:
    """The root level of a config object, mapping, config.json path or model folder. ConfigError: no file, or no JSON object in it."""
    if isinstance(source, (str, os.PathLike)):
        return Level(_load_file(os.fspath(source)))
    if source is None or isinstance(source, _PLAIN):
        raise ConfigError(
            f"a config is a mapping, an object with attributes, a config.json path or a folder; got {type(source).__name__} {source!r}"
        )
    return Level(source)


def _load_file(path: str | bytes) -> Mapping[str, object]:
    name = os.fsdecode(path)
    if os.path.isdir(name):
        name = os.path.join(name, "config.json")
    try:
        with open(name, encoding="utf-8") as file:
            loaded = json.load(file)
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be read: {error.strerror or error}. Pass a config.json or a folder that holds one"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{name} holds a JSON {type(loaded).__name__}, expected an object with the config's fields")
    return loaded
