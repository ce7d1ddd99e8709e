"""How a call becomes an operator of the namespace `hal`: its schema, what runs, and what stands for it in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hal.common.contract.gradients import refuse_gradients

__all__ = ["define_operator", "refuse_gradients"]


def define_operator(name: str, schema: str, run: Callable[..., Any], trace: Callable[..., Any]) -> torch._ops.OpOverload:
    """The operator hal::name, an overload where the name has a dot.

    run serves every device, since the backend is an argument; trace makes empty results of the right shape, type and strides
    from tensors without data.
    """
    qualified = f"hal::{name}"
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "default", run)
    torch.library.register_fake(qualified, trace)
    packet, _, overload = name.partition(".")
    operator: torch._ops.OpOverload = getattr(getattr(torch.ops.hal, packet), overload or "default")
    return operator
