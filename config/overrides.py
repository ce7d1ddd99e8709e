"""Overrides: fields that beat the config, checked before anything is read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from .errors import ConfigError
from .names import FIELDS


def check_overrides(overrides: Mapping[str, object] | None) -> dict[str, object]:
    """The overrides as a plain dict. ConfigError: a name that no rule reads, with the nearest ones that are read."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise ConfigError(f"overrides is {overrides!r}, expected values by the names of fields")
    given = dict(overrides or {})
    for name in given:
        if name not in FIELDS:
            near = difflib.get_close_matches(str(name), FIELDS, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "it is no field of a text config's attention"
            raise ConfigError(f"override {name!r} is not a field that is read; {hint}")
    return given
