"""Reading a foreign object without touching it."""

from __future__ import annotations

import copy
import types

_PLAIN = (types.SimpleNamespace, type, types.ModuleType)
"""Objects whose attributes are read as they stand: no code of theirs runs."""


def detach(source: object) -> object:
    """The object's attributes in another object of its class, so that a property or hook that writes does not write to it.

    The object itself where its class cannot be made without arguments.
    """
    kind = type(source)
    if kind in _PLAIN:
        return source
    try:
        twin = object.__new__(kind)
        for name, value in attributes(source):
            object.__setattr__(twin, name, value)
    except (TypeError, AttributeError):
        return _copy(source)
    return twin


def attributes(source: object) -> list[tuple[str, object]]:
    """The instance's own attributes, slots included, read without running its hooks."""
    slots = [name for base in type(source).__mro__ for name in _slot_names(base)]
    found = [(name, object.__getattribute__(source, name)) for name in slots if _holds(source, name)]
    return found + list(_dict(source).items())


def _slot_names(base: type) -> tuple[str, ...]:
    """A class's own slots, private ones under the name that Python gives them."""
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{base.__name__.lstrip('_')}"
    return tuple(
        private + name if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    )


def _holds(source: object, name: str) -> bool:
    try:
        object.__getattribute__(source, name)
    except AttributeError:
        return False
    return True


def _dict(source: object) -> dict[str, object]:
    try:
        return dict(object.__getattribute__(source, "__dict__"))
    except AttributeError:
        return {}


def _copy(source: object) -> object:
    try:
        return copy.copy(source)
    except Exception:  # noqa: BLE001 - a foreign object may refuse with anything; it is then read as it is
        return source
