"""Ids that a list names twice: a choice of keys is a set, so each counts once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def forget_repeats(ids: torch.Tensor) -> torch.Tensor:
    """ids int32 [tokens, width] with -1 in place of each id that stands further left in its row already; unchanged if none does.

    Nothing is read back from an accelerator. Sorting is what it costs, so those who know that no id repeats do not ask.
    """
    if ids.is_cpu and not has_repeats(ids.numpy()):
        return ids
    ordered, places = ids.sort(dim=1, stable=True)
    is_repeat = torch.zeros_like(ids, dtype=torch.bool)
    is_repeat.scatter_(1, places[:, 1:], ordered[:, 1:] == ordered[:, :-1])
    return ids.masked_fill(is_repeat, -1)


def has_repeats(ids: npt.NDArray[Any]) -> bool:
    """Whether a number that is not negative occurs twice in any list [..., width]."""
    # Lists mostly have none, and numpy sorts twenty times as fast where their places need not be known.
    ordered = ids.copy()
    ordered.sort()
    is_again = ordered[..., 1:] == ordered[..., :-1]
    return bool(np.count_nonzero(is_again)) and bool((is_again & (ordered[..., 1:] >= 0)).any())
