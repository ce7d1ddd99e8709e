"""Calls that compute no gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def without_gradients(call: Callable[P, R]) -> Callable[P, R]:
    """The call under torch.no_grad(); that is entered, which takes longer than asking, only where gradients are on."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        with torch.no_grad():
            return call(*args, **kwargs)

    return run
