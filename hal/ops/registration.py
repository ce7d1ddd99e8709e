"""How a call becomes an operator of the namespace `hal`: its schema, what runs, and what stands for it in a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from hal.common.contract.gradients import refuse_gradients

from .schema import write_schema

__all__ = ["define_call", "define_operator", "refuse_gradients"]

Operands = TypeVar("Operands")


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


def define_call(
    name: str,
    operands: Callable[..., Operands],
    returns: str,
    run: Callable[[Operands], Any],
    trace: Callable[[Operands], Any],
    mutated: Sequence[str] = (),
) -> torch._ops.OpOverload:
    """The operator hal::name of a NamedTuple's fields, which run and trace are given whole; each checks them first."""

    def run_fields(*arguments: Any) -> Any:
        return run(operands(*arguments))

    def trace_fields(*arguments: Any) -> Any:
        return trace(operands(*arguments))

    return define_operator(name, f"({write_schema(operands, mutated)}) -> {returns}", run_fields, trace_fields)
