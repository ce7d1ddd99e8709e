"""The best columns of a row, by sorting it."""

from __future__ import annotations

import math


def best(scores: list[float], length: int, k: int) -> list[int]:
    """The k best of a row's first `length` columns; NaN is as low as a score can be."""
    columns = range(max(0, min(length, len(scores))))
    ranked = sorted(columns, key=lambda column: (math.inf if math.isnan(scores[column]) else -scores[column], column))
    return sorted(ranked[:k])
