"""Joining partial results by their LSE, and the sink."""

from __future__ import annotations

import torch

from .calls import find_calls
from .operands import CUBE, FLOATS, check_operands
from .registration import define_operator, refuse_gradients
from .results import log_dtype, settle


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


def _check_merge(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor) -> None:
    check_operands("merge_states", ("out_a", out_a, FLOATS, CUBE))
    check_operands(
        "merge_states",
        ("out_a", out_a, None, None),
        ("lse_a", lse_a, FLOATS, tuple(out_a.shape[:2])),
        ("out_b", out_b, FLOATS, tuple(out_a.shape)),
        ("lse_b", lse_b, FLOATS, tuple(out_a.shape[:2])),
    )
    refuse_gradients(out_a, lse_a, out_b, lse_b)


def _check_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> None:
    check_operands("apply_sink", ("out", out, FLOATS, CUBE))
    tokens, heads, _ = out.shape
    check_operands(
        "apply_sink", ("out", out, None, None), ("lse", lse, FLOATS, (tokens, heads)), ("sink", sink, FLOATS, (heads,))
    )
    refuse_gradients(out, lse, sink)


def _run_merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, backend: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_merge(out_a, lse_a, out_b, lse_b)
    out, lse = find_calls(backend, out_a.device).merge_states(out_a, lse_a, out_b, lse_b)
    return settle(out, out_a.dtype, out_a, out_b), settle(lse, log_dtype(lse_a.dtype), lse_a, lse_b)


def _trace_merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, backend: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_merge(out_a, lse_a, out_b, lse_b)
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape, dtype=log_dtype(lse_a.dtype))


def _run_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor, backend: str | None) -> torch.Tensor:
    _check_sink(out, lse, sink)
    return settle(find_calls(backend, out.device).apply_sink(out, lse, sink), out.dtype, out)


def _trace_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor, backend: str | None) -> torch.Tensor:
    _check_sink(out, lse, sink)
    return out.new_empty(out.shape)


_MERGE = define_operator(
    "merge_states",
    "(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b, str? backend) -> (Tensor, Tensor)",
    _run_merge,
    _trace_merge,
)
_SINK = define_operator("apply_sink", "(Tensor out, Tensor lse, Tensor sink, str? backend) -> Tensor", _run_sink, _trace_sink)
