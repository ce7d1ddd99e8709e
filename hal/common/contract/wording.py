"""Words that depend on how many things they speak of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def say_count(number: int, noun: str) -> str:
    """ "1 page" and "2 pages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def say_groups(groups: Mapping[str, Iterable[object]]) -> str:
    """Each word with what it is said of, those with nothing left out: "missing for 0 and 1, unknown for 7"."""
    listed = {word: sorted(map(str, items)) for word, items in groups.items()}
    return ", ".join(f"{word} {say_all(items)}" for word, items in listed.items() if items)


def say_all(items: Iterable[object]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last
