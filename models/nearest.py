"""The name that a wrong name was most likely meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CLOSE = 0.7


class Neighbours:
    """Looks names up among known ones; those that differ in their numbers alone are compared once, so thousands are cheap."""

    def __init__(self, known: Iterable[str]) -> None:
        self._by_kind: dict[str, list[str]] = {}
        for name in known:
            self._by_kind.setdefault(_kind(name), []).append(name)
        self._found: dict[str, str | None] = {}

    def find(self, name: str) -> str | None:
        """The nearest known name, with the numbers of `name` where there is one with them; None where none is near."""
        kind = _kind(name)
        if kind not in self._found:
            near = get_close_matches(kind, [other for other in self._by_kind if other != kind], n=1, cutoff=CLOSE)
            self._found[kind] = near[0] if near else None
        found = self._found[kind]
        if found is None:
            return None
        numbers = _numbers(name)
        names = self._by_kind[found]
        return next((other for other in names if _numbers(other) == numbers), names[0])


def _kind(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name[:400].split("."))


def _numbers(name: str) -> list[str]:
    return [part for part in name.split(".") if part.isdigit()]
