"""What the host can see of an operator's tensors, looked at before any of them is read or written."""

from __future__ import annotations

import torch

from hal.common.contract.dense import shares_places
from hal.common.contract.errors import LayoutError
from hal.common.contract.tensor_faults import ANY, CUBE, FLAT, FLOATS, INT32, INT64, MATRIX, find_fault

__all__ = [
    "ANY",
    "CUBE",
    "FLAT",
    "FLOATS",
    "INT32",
    "INT64",
    "MATRIX",
    "Operand",
    "check_counts",
    "check_masking",
    "check_operands",
    "check_out",
    "given",
    "leading",
    "sink_operands",
]

Operand = tuple[str, torch.Tensor | None, frozenset[torch.dtype] | None, tuple[int, ...] | None]
"""A tensor's name, itself, the types it may have and its shape; None where the call itself looks at those."""


def check_operands(call: str, *operands: Operand) -> None:
    """Raise LayoutError for a tensor of another type or shape, or on another device than the first."""
    device = None
    for name, tensor, dtypes, shape in operands:
        if device is None and isinstance(tensor, torch.Tensor):
            device = tensor.device
        if fault := find_fault(name, tensor, dtypes, shape, device):
            raise LayoutError(f"hal.ops.{call}: {fault}")


def leading(tensor: torch.Tensor) -> int:
    """The size of a tensor's first dimension; ANY where it has none."""
    return tensor.shape[0] if tensor.dim() else ANY


def given(**tensors: torch.Tensor | None) -> tuple[Operand, ...]:
    """Operands of which only the device is looked at here, those that are None left out."""
    return tuple((name, tensor, None, None) for name, tensor in tensors.items() if tensor is not None)


def sink_operands(q: torch.Tensor, sink: torch.Tensor | None) -> tuple[Operand, ...]:
    """A sink where there is one, a float for each of the queries' heads."""
    heads = q.shape[1] if q.dim() == len(CUBE) else ANY
    return () if sink is None else (("sink", sink, FLOATS, (heads,)),)


def check_counts(call: str, least: int, **counts: int) -> None:
    """Raise LayoutError for a number below the least it may be."""
    for name, count in counts.items():
        if type(count) is int and count < least:
            raise LayoutError(f"hal.ops.{call}: {name} is {count}; expected at least {least}")


def check_masking(call: str, window: int | None, chunk: int | None, softcap: float | None) -> None:
    """Raise LayoutError for a mask that would hide every key, or a softcap that is no bound."""
    if window is not None:
        check_counts(call, 1, window=window)
    if chunk is not None:
        check_counts(call, 1, chunk=chunk)
    if softcap is not None and not softcap > 0:
        raise LayoutError(f"hal.ops.{call}: softcap is {softcap}; expected None or more than 0")


def check_out(call: str, q: torch.Tensor, out: torch.Tensor) -> None:
    """Raise LayoutError for an out on another device than q or whose elements share places; the call looks at the rest."""
    check_operands(call, ("q", q, None, None), ("out", out, None, None))
    strides = out.stride()
    # Symbols of a trace are left to the run.
    if all(type(size) is int for size in (*out.shape, *strides)) and shares_places(out.shape, strides):
        raise LayoutError(f"hal.ops.{call}: out has strides {list(strides)}; expected every element in a place of its own")
