"""Positions dealt to ranks."""

from __future__ import annotations


def deal(length: int, ranks: int, run: int) -> list[list[int]]:
    """Positions dealt to ranks in runs, one run after the other, as cards are."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for position in range(length):
        hands[position // run % ranks].append(position)
    return hands
