"""Attention of one query over a list of keys, from the definition, in Python's own numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.layouts import Layout

Row = list[float]


def attend(query: Row, keys: list[Row], values: list[Row], scale: float, sink: float | None = None) -> tuple[Row, float]:
    """out and lse of one head; a sink is one more exponential in the denominator, and no part of the lse."""
    scores = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    terms = [math.exp(score) for score in scores]
    total = sum(terms)
    if not keys:
        return [], -math.inf
    below = total + (0.0 if sink is None else math.exp(sink))
    return [sum(t * value[i] for t, value in zip(terms, values, strict=True)) / below for i in range(len(values[0]))], math.log(
        total
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A cache of random rows, NaN between its pages, with its rows as lists."""

    cache: KVCache
    rows: list[Row]

    def of(self, table: list[int], length: int) -> list[Row]:
        """The cached rows of a request's positions."""
        size, stride = self.cache.block_size, self.cache.page_stride
        return [self.rows[table[position // size] * stride + position % size] for position in range(length)]


def draw_cache(layout: Layout, pages: int, block_size: int, generator: torch.Generator, where: str) -> Drawn:
    """A cache of some pages, each with one more row that is nobody's."""
    storage = torch.randn(pages, block_size + 1, layout.width, generator=generator)
    storage[:, block_size:] = torch.nan
    cache = KVCache(storage.to(where), layout, block_size, block_size + 1)
    return Drawn(cache=cache, rows=cache.rows.cpu().tolist())


def check_rows(out: torch.Tensor, lse: torch.Tensor | None, expected: list[list[tuple[Row, float]]]) -> None:
    """out [tokens, heads, width] and lse [tokens, heads] against (row, lse) per token and head; no keys: 0 and -inf exactly."""
    for token, heads in enumerate(expected):
        for head, (row, level) in enumerate(heads):
            found = out[token, head].tolist()
            if level == -math.inf:
                assert found == [0.0] * len(found)
                assert lse is None or lse[token, head] == -math.inf
                continue
            assert all(abs(a - b) < 2e-5 * (1 + abs(b)) for a, b in zip(found, row, strict=True)), (token, head, found, row)
            assert lse is None or abs(lse[token, head].item() - level) < 2e-5 * (1 + abs(level))
