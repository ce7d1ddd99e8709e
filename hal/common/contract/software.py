"""Vendor libraries by name and version, known from distribution metadata and never by importing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InputError

_MOST_DIGITS = 18
"""Digits of one number of a version; no release has more, and longer ones are slow to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A vendor library a backend calls: the name used in Software, the distributions that carry it, the least version."""

    name: str
    distributions: tuple[str, ...]
    minimum: str = ""


@dataclass(frozen=True, slots=True, init=False)
class Software:
    """Which vendor libraries there are: {"flash_attn_3": "3.0.0"}; `broken` holds those known not to load, with why."""

    versions: tuple[tuple[str, str], ...]
    broken: tuple[tuple[str, str], ...]

    def __init__(self, versions: Mapping[str, str] | None = None, broken: Mapping[str, str] | None = None) -> None:
        object.__setattr__(self, "versions", _read_names("versions", versions, "3.0.0"))
        object.__setattr__(self, "broken", _read_names("broken", broken, "OSError: libfoo.so"))

    def version(self, name: str) -> str | None:
        """The version of a library, None where it is absent."""
        return dict(self.versions).get(name)

    def failure(self, name: str) -> str | None:
        """Why an installed library does not load, None where nothing is known against it."""
        return dict(self.broken).get(name)


def _read_names(name: str, given: object, example: str) -> tuple[tuple[str, str], ...]:
    """The pairs in order; InputError where they are no texts by library name."""
    if given is None:
        return ()
    texts = [text for pair in given.items() for text in pair] if isinstance(given, Mapping) else [given]
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for text in texts):
        raise InputError(f'{name} is {given!r}; expected texts by library name, such as {{"flash_attn_3": "{example}"}}')
    return tuple(sorted(given.items()))


def version_tuple(version: str) -> tuple[int, ...]:
    """Leading numbers of a version without trailing zeros, for comparison; "2.8.0+cpu" gives (2, 8)."""
    numbers = []
    for piece in version.split("+")[0].split("."):
        digits = ""
        for character in piece:
            if character not in "0123456789" or len(digits) == _MOST_DIGITS:
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != piece:
            break
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
