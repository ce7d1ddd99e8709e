"""Large layers without their weights: a few tokens through a model of gigabytes show what reaches what, and read none of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from .hollow import read_linear

LARGE = 1 << 20
"""Elements from which on a matrix is left out; smaller ones take no time."""


@contextmanager
def weightless(module: nn.Module) -> Iterator[None]:
    """Within the block large linear layers fold or repeat what they are given instead of multiplying it.

    Each token's outputs then still depend on all that this token brings and on nothing else, as a matrix makes them, and every
    hook still runs; the weights, whose reading is most of the time that a few tokens take, are not touched.
    """
    patched: list[Any] = []
    try:
        for child in module.modules():
            sizes = read_linear(child)
            if sizes is not None and sizes.inputs * sizes.outputs >= LARGE and "forward" not in child.__dict__:
                child.forward = partial(_fold, sizes.outputs)
                patched.append(child)
        yield
    finally:
        for child in patched:
            del child.forward


def _fold(outputs: int, given: torch.Tensor, *_args: Any, **_keywords: Any) -> torch.Tensor:
    inputs = given.shape[-1]
    if inputs <= outputs:
        return given.repeat(*(1,) * (given.ndim - 1), -(-outputs // inputs))[..., :outputs]
    folds = -(-inputs // outputs)
    padded = nn.functional.pad(given, (0, folds * outputs - inputs))
    folded: torch.Tensor = padded.unflatten(-1, (folds, outputs)).sum(-2)
    return folded / math.sqrt(folds)
