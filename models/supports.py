"""Which of a layer's outputs a tensor depends on, by gradients that only have to be other than zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch

Supports = dict[str, torch.Tensor]
"""By layer: a boolean for each of its outputs. A layer on which nothing depends is left out."""


def depends_on(target: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
    """The size of the gradient at every element of a leaf, None where the target does not depend on any."""
    return _gradients(target, [leaf])[0]


def find_supports(target: torch.Tensor, leaves: Mapping[str, torch.Tensor]) -> Supports:
    """The outputs of each layer that the target depends on."""
    found = {}
    for (name, leaf), gradient in zip(leaves.items(), _gradients(target, list(leaves.values())), strict=True):
        if gradient is not None:
            rows = gradient.reshape(-1, leaf.shape[-1]).sum(0) > 0
            if bool(rows.any()):
                found[name] = rows
    return found


def join_supports(*several: Supports) -> Supports:
    """What any of them depends on."""
    joined: Supports = {}
    for supports in several:
        for name, rows in supports.items():
            joined[name] = joined[name] | rows if name in joined else rows
    return joined


def _gradients(target: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    if not leaves or not target.requires_grad:
        return [None] * len(leaves)
    # Weights of one sign and no pattern: nothing cancels by chance.
    weights = torch.rand_like(target) + 0.5
    gradients = torch.autograd.grad((target * weights).sum(), leaves, retain_graph=True, allow_unused=True)
    return [None if gradient is None else gradient.abs() for gradient in gradients]
