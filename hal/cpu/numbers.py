"""In which type the CPU computes."""

from __future__ import annotations

import torch


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64 and fp32 for everything else.

    A bf16 matrix product is tens of times slower than fp32 on a CPU without bf16 units, and the reference must not round
    in between.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
