"""The k best columns of each row."""

from __future__ import annotations

import math

import torch

from hal.common.contract.errors import BatchError


def select_topk(scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int) -> torch.Tensor:
    """int32 [tokens, width]: columns below the row's length by value descending, then lower id; -1 after. NaN is -inf."""
    if k > width:
        raise BatchError(f"k is {k}; a row of width {width} holds at most {width} columns")
    topk = torch.full((scores.shape[0], width), -1, dtype=torch.int32)
    for token, (row, length) in enumerate(zip(scores.tolist(), lengths.tolist(), strict=True)):
        values = [-math.inf if math.isnan(value) else value for value in row[: max(length, 0)]]
        order = sorted(range(len(values)), key=lambda column: (-values[column], column))
        best = order[:k]
        topk[token, : len(best)] = torch.tensor(best, dtype=torch.int32)
    return topk
