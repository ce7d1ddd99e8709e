"""A layout as a short text, for interfaces that take no objects."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any


def describe(layout: Any) -> str:
    """What the layout was made of as compact JSON, as in {"name":"kv","dtype":"float32","parts":[[2,64],[2,64]]}."""
    chosen = {each.name: getattr(layout, each.name) for each in fields(layout) if each.init}
    defaults = {each.name: each.default for each in fields(layout) if each.default is not MISSING}
    given = {name: value for name, value in chosen.items() if name not in defaults or value != defaults[name]}
    return json.dumps(given, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} cannot be part of a layout's description")
