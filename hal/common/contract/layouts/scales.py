"""The fp32 scales that live outside a cache: what values are divided by when they are written."""

from __future__ import annotations

from math import inf

import torch


def describe_wrong(scale: torch.Tensor) -> str | None:
    """What scales are where any of them is not finite and above 0, None where all are; it waits for an accelerator."""
    if scale.is_meta:
        return "on meta, which holds no values"
    values = scale.flatten().tolist()
    return None if all(0 < value < inf for value in values) else str(scale.tolist())


def can_see(scale: torch.Tensor) -> bool:
    """Whether the host can read scales at once: not an accelerator's, and none that stand for values in a trace."""
    return scale.is_cpu and type(scale) in (torch.Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
