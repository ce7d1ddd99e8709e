"""Calls that compute no gradients: kernels refuse to be recorded, a layer's attention says so once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from .cache import KVCache
from .compressor import Compressor
from .errors import BackendError

P = ParamSpec("P")
R = TypeVar("R")


def without_gradients(call: Callable[P, R]) -> Callable[P, R]:
    """The call under torch.no_grad(); that is entered, which takes longer than asking, only where gradients are on.

    Where they are and an input requires one, it warns that the result is detached: once for each line that calls it.
    """

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        if needs_gradient(args) or needs_gradient(kwargs.values()):
            warnings.warn(
                f"an input of {call.__name__} requires a gradient and hal's attention has no backward: its result is detached "
                "and no gradient flows through it; call it under torch.inference_mode() or torch.no_grad()",
                UserWarning,
                stacklevel=2,
            )
        with torch.no_grad():
            return call(*args, **kwargs)

    return run


def refuse_gradients(*operands: Any) -> None:
    """Raise BackendError where autograd would record a call with these operands: no kernel has a backward."""
    if torch.is_grad_enabled() and needs_gradient(operands):
        raise BackendError(
            "an input requires a gradient and hal's calls have no backward; call them under torch.inference_mode() or "
            "torch.no_grad()"
        )


def needs_gradient(values: Iterable[Any]) -> bool:
    """Whether a tensor among values requires a gradient: one of them, of a list or tuple, or a cache's or a compressor's."""
    # Asked by every layer of every step: a plain loop takes a third of what generators take.
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (tuple, list)):
            if needs_gradient(value):
                return True
        elif isinstance(value, KVCache):
            if needs_gradient((value.storage, value.scale)):
                return True
        elif isinstance(value, Compressor) and needs_gradient([getattr(value, each.name) for each in fields(value)]):
            return True
    return False
