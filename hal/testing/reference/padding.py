"""Ragged lists as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def pad_lists(lists: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """int32 [len(lists), width] with every list to the left and -1 after it."""
    padded = torch.full((len(lists), width), -1, dtype=torch.int32)
    for index, items in enumerate(lists):
        padded[index, : len(items)] = torch.tensor(items, dtype=torch.int32)
    return padded
