"""The CPU's choice among equal scores, inside and across the last place and past a token's length, against a plain sort."""

from __future__ import annotations

import math

import pytest
import torch

from hal.cpu.topk import select_topk


def choose_plainly(scores: list[float], length: int, k: int) -> list[int]:
    """The ids by value descending, then by lower id; NaN counts as -inf."""
    values = [-math.inf if math.isnan(score) else score for score in scores[: max(0, length)]]
    return sorted(range(len(values)), key=lambda key: (-values[key], key))[:k]


@pytest.mark.parametrize("levels", [1, 4, 60], ids=["all-equal", "few-values", "some-ties"])
@pytest.mark.parametrize("are_full", [True, False], ids=["whole-rows", "lengths"])
@pytest.mark.parametrize("seed", range(20))
def test_equal_scores_go_by_id(levels: int, are_full: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens, keys, k = (int(torch.randint(1, most, (), generator=generator)) for most in (5, 40, 45))
    scores = torch.randint(levels, (tokens, keys), generator=generator).float()
    for value in (math.nan, -math.inf, math.inf)[: seed % 4]:
        scores[torch.rand(tokens, keys, generator=generator) < 0.2] = value
    lengths = torch.randint(-1, keys + 3, (tokens,), generator=generator, dtype=torch.int32)
    if are_full:
        lengths.fill_(keys)
    chosen = select_topk(scores, lengths, k, k + 2)
    for row, own, length in zip(chosen.tolist(), scores.tolist(), lengths.tolist(), strict=True):
        expected = choose_plainly(own, length, k)
        assert row == expected + [-1] * (k + 2 - len(expected))
