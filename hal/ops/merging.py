"""Joining partial results by their LSE, and the sink."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .calls import find_calls
from .operands import CUBE, FLOATS, check_operands
from .registration import define_call, refuse_gradients
from .results import log_dtype, settle


class _Merged(NamedTuple):
    out_a: torch.Tensor
    lse_a: torch.Tensor
    out_b: torch.Tensor
    lse_b: torch.Tensor
    backend: str | None


class _Sunk(NamedTuple):
    out: torch.Tensor
    lse: torch.Tensor
    sink: torch.Tensor
    backend: str | None


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, *, backend: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result over both key sets and its lse in new tensors, as Backend.merge_states, by the operator."""
    merged: tuple[torch.Tensor, torch.Tensor] = _MERGE(out_a, lse_a, out_b, lse_b, backend)
    return merged


def apply_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor, *, backend: str | None = None) -> torch.Tensor:
    """out * sigmoid(lse - sink) in a new tensor, as Backend.apply_sink, by the operator."""
    result: torch.Tensor = _SINK(out, lse, sink, backend)
    return result


def _check_merge(operands: _Merged) -> None:
    out_a = operands.out_a
    check_operands("merge_states", ("out_a", out_a, FLOATS, CUBE))
    check_operands(
        "merge_states",
        ("out_a", out_a, None, None),
        ("lse_a", operands.lse_a, FLOATS, tuple(out_a.shape[:2])),
        ("out_b", operands.out_b, FLOATS, tuple(out_a.shape)),
        ("lse_b", operands.lse_b, FLOATS, tuple(out_a.shape[:2])),
    )
    refuse_gradients(*operands[:4])


def _run_merge(operands: _Merged) -> tuple[torch.Tensor, torch.Tensor]:
    _check_merge(operands)
    out_a, lse_a, out_b, lse_b, backend = operands
    out, lse = find_calls(backend, out_a.device).merge_states(out_a, lse_a, out_b, lse_b)
    return settle(out, out_a.dtype, out_a, out_b), settle(lse, log_dtype(lse_a.dtype), lse_a, lse_b)


def _trace_merge(operands: _Merged) -> tuple[torch.Tensor, torch.Tensor]:
    _check_merge(operands)
    out, lse = operands.out_a, operands.lse_a
    return out.new_empty(out.shape), lse.new_empty(lse.shape, dtype=log_dtype(lse.dtype))


def _check_sink(operands: _Sunk) -> None:
    out, lse, sink, _ = operands
    check_operands("apply_sink", ("out", out, FLOATS, CUBE))
    tokens, heads, _ = out.shape
    check_operands(
        "apply_sink", ("out", out, None, None), ("lse", lse, FLOATS, (tokens, heads)), ("sink", sink, FLOATS, (heads,))
    )
    refuse_gradients(out, lse, sink)


def _run_sink(operands: _Sunk) -> torch.Tensor:
    _check_sink(operands)
    out, lse, sink, backend = operands
    return settle(find_calls(backend, out.device).apply_sink(out, lse, sink), out.dtype, out)


def _trace_sink(operands: _Sunk) -> torch.Tensor:
    _check_sink(operands)
    return operands.out.new_empty(operands.out.shape)


_MERGE = define_call("merge_states", _Merged, "(Tensor, Tensor)", _run_merge, _trace_merge)
_SINK = define_call("apply_sink", _Sunk, "Tensor", _run_sink, _trace_sink)
