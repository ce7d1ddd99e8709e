"""The layout that a short text describes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hal.common.contract.errors import LayoutError

from .layout import Layout
from .row_layout import BlockScaling


@cache
def parse_layout(text: str) -> Layout:
    """The layout that was described so; LayoutError for a text that describes none."""
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


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
