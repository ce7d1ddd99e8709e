"""Experts whose weights are stacked: each rank keeps a part of every expert's inner width, and the ranks' results add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hal.common.contract.parallel import Parallel

from .hollow import draw
from .slices import Part, block
from .supports import find_supports

INWARD = ("gate_up_proj", "up_proj")
OUTWARD = "down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsDivision:
    """What this rank keeps of each parameter, by its name in the module; `once` is added by rank 0 alone."""

    width: int
    parts: Mapping[str, Part]
    once: frozenset[str]


def is_stacked(module: nn.Module) -> bool:
    """Whether a module holds weights of three dimensions, an expert each along the first."""
    return any(parameter.ndim == 3 for parameter in module.parameters(recurse=False))


def divide_experts(module: Any, parallel: Parallel) -> ExpertsDivision | None:
    """How a rank divides one experts module, None for one that does not say how it is laid out.

    transformers' experts state it (is_transposed, has_gate, has_bias), and their own gate shows which outputs of the first
    weight meet in one input of the second, halves or pairs.
    """
    parameters = dict(module.named_parameters(recurse=False))
    inward = next((name for name in INWARD if name in parameters), None)
    stated = all(hasattr(module, name) for name in ("is_transposed", "has_gate", "has_bias"))
    if not stated or inward is None or OUTWARD not in parameters or getattr(module, "has_post_expert_norm", False):
        return None
    if set(parameters) - {inward, OUTWARD, f"{inward}_bias", f"{OUTWARD}_bias"}:
        return None
    out_dim, in_dim = (2, 1) if module.is_transposed else (1, 2)
    width = parameters[OUTWARD].shape[in_dim]
    own = block(width, parallel.tp_rank, parallel.tp)
    rows = _rows_of(module, parameters[inward].shape[out_dim], width, own) if module.has_gate else tuple(own)
    if rows is None:
        return None
    num_rows = parameters[inward].shape[out_dim]
    parts = {inward: Part.of(out_dim, num_rows, rows), OUTWARD: Part.of(in_dim, width, own)}
    if f"{inward}_bias" in parameters:
        parts[f"{inward}_bias"] = Part.of(1, num_rows, rows)
    return ExpertsDivision(width=width, parts=parts, once=frozenset({f"{OUTWARD}_bias"} & set(parameters)))


def _rows_of(module: Any, num_rows: int, width: int, own: range) -> tuple[int, ...] | None:
    """Which outputs of a fused gate the inner places of a rank depend on, by the module's own gate."""
    gate_up = draw((4, num_rows), torch.float32)
    try:
        with torch.enable_grad():
            inner = module._apply_gate(gate_up.clone())
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    if inner.shape[-1] != width:
        return None
    kept = find_supports(inner[..., own.start : own.stop], {"own": gate_up}).get("own")
    others = [inner[..., : own.start], inner[..., own.stop :]]
    rest = [find_supports(other, {"own": gate_up}).get("own") for other in others if other.shape[-1]]
    if kept is None or any(found is not None and bool((kept & found).any()) for found in rest):
        return None
    return tuple(kept.nonzero().flatten().tolist())
