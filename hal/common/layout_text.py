"""A layout as a short text and back, for interfaces that take no objects."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import LayoutError

if TYPE_CHECKING:
    from .layouts import Layout


def describe_layout(layout: Layout) -> str:
    """What the layout was made of as compact JSON, as in {"name":"kv","dtype":"float32","parts":[[2,64],[2,64]]}."""
    chosen = {each.name: getattr(layout, each.name) for each in fields(layout) if each.init}
    defaults = {each.name: each.default for each in fields(layout) if each.default is not MISSING}
    given = {name: value for name, value in chosen.items() if name not in defaults or value != defaults[name]}
    return json.dumps(given, separators=(",", ":"), default=_plain)


@cache
def parse_layout(text: str) -> Layout:
    """The layout that was described so; LayoutError for a text that describes none."""
    from .layouts import BlockScaling, Layout

    try:
        given = json.loads(text)
        if "blocks" in given:
            given["blocks"] = BlockScaling(**given["blocks"])
        return Layout(**{name: _frozen(value) for name, value in given.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise LayoutError(
            f"{text!r} describes no cache layout; pass a layout's description, as in "
            '{"name":"kv","dtype":"float32","parts":[[2,64],[2,64]]}'
        ) from error


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} cannot be part of a layout's description")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
