"""How much DCP ranks tell each other at once: a plan's buffers for it stay within a bound, however long its steps are."""

from __future__ import annotations

MAX_PARTIAL_BYTES = 128 * 2**20
"""Partial results of one exchange, those of every rank for a rank's heads and as many received."""
MAX_CANDIDATE_BYTES = 64 * 2**20
"""Index candidates of all ranks."""


def divisors(heads: int) -> tuple[int, ...]:
    """The numbers that divide a rank's heads, as many of which may go in one exchange, the least first."""
    return tuple(each for each in range(1, heads + 1) if heads % each == 0)


def heads_at_once(heads: int, ranks: int, tokens: int, row_bytes: int) -> int:
    """Of how many of a rank's heads an exchange of so many tokens is; a head's result takes row_bytes."""
    room = MAX_PARTIAL_BYTES // max(1, 2 * ranks * tokens * row_bytes)
    return max(each for each in divisors(heads) if each <= max(1, room))


def rows_at_once(heads: int, ranks: int, tokens: int, row_bytes: int) -> int:
    """The most results, of one head of a token, that ranks give in an exchange of up to so many tokens."""
    return min(ranks * tokens * heads, max(MAX_PARTIAL_BYTES // (2 * row_bytes), ranks * tokens))


def tokens_at_once(tokens: int, ranks: int, candidates: int) -> int:
    """Of how many tokens candidates are gathered at once, each a value and an id of 4 bytes."""
    return max(1, min(tokens, MAX_CANDIDATE_BYTES // (4 * ranks * (2 * candidates + 1))))
