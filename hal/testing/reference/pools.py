"""Tokens of the pools that a pooled indexer chose."""

from __future__ import annotations

import torch

from .padding import pad_lists


def expand_pools(topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int) -> torch.Tensor:
    """int32 [tokens, width]: the pool tokens of every chosen full pool, once each, then those of the open tail, then -1."""
    lists = []
    for row, length in zip(topk.tolist(), lengths.tolist(), strict=True):
        full_pools = max(length, 0) // pool
        chosen = [group for group in dict.fromkeys(row) if 0 <= group < full_pools]
        history = [group * pool + offset for group in chosen for offset in range(pool)]
        tail = list(range(full_pools * pool, max(length, 0)))
        lists.append(history + tail)
    return pad_lists(lists, width)
