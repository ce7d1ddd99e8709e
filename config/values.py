"""What counts as a value: the sentinel rules, in one place.

None, 0, negative numbers and booleans mean "unset" for widths and counts; an empty string means "unset" anywhere. Anything
else that is not of the expected kind is an error, because no config says it on purpose.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import SupportsIndex, TypeVar

from .errors import ConfigError

T = TypeVar("T")
Convert = Callable[[object, str], T | None]

LARGEST = 2**31 - 1
"""No width, count or position of a model reaches this; kernels take them as int32."""


def as_count(value: object, where: str) -> int | None:
    """A positive whole number, or None for unset."""
    if value is None or value is False or value is True or value == "":
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, SupportsIndex):
        raise ConfigError(f"{where} is {value!r}, expected a whole number (None, 0 or a negative number for unset)")
    number = operator.index(value)
    if number > LARGEST:
        raise ConfigError(f"{where} is {number}, expected at most {LARGEST}")
    return number if number > 0 else None


def as_width(value: object, where: str) -> int | None:
    """A whole number of at least 0, or None for unset: for rope widths and compress ratios, where 0 is a value."""
    if value == 0 and isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0
    return as_count(value, where)


def as_number(value: object, where: str) -> float | None:
    """A positive finite number, or None for unset."""
    if value is None or isinstance(value, bool) or value == "":
        return None
    if not isinstance(value, (int, float)):
        raise ConfigError(f"{where} is {value!r}, expected a number")
    if abs(value) > LARGEST or not math.isfinite(value):
        raise ConfigError(f"{where} is {value!r}, expected a finite number of at most {LARGEST}")
    return float(value) if value > 0 else None


def as_flag(value: object, where: str) -> bool | None:
    """A boolean, or None for unset; 0 and 1 are taken as booleans."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ConfigError(f"{where} is {value!r}, expected true or false")


def as_text(value: object, where: str) -> str | None:
    """A string that is not empty, or None for unset."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    raise ConfigError(f"{where} is {value!r}, expected a string")
