"""What the oracles are held against, and how often."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

from hal.common.backends.registry import find_backend
from hal.common.contract.backend import Backend, required_calls
from hal.common.contract.device import Device
from hal.testing import ReferenceBackend
from hal.testing.targets import Target, find_targets

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PORTABLE = {"cuda:triton": "cuda:sm_90", "rocm:triton": "rocm:gfx942", "xpu:triton": "xpu:pvc"}

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
ON_KERNELS = settings(BOUNDED, max_examples=4 if IS_INTERPRETED else 40)
"""Fewer where every launch is interpreted."""


def find_cpu_targets(backend: str | None = None) -> tuple[Target, ...]:
    """Every backend that runs here and the float64 reference itself; under TRITON_INTERPRET=1 the portable ones instead."""
    if IS_INTERPRETED:
        names = [name for name in PORTABLE if backend in (None, name)]
        return tuple(
            Target(backend=find_backend(name), device=Device.from_arch(PORTABLE[name], torch_device="cpu")) for name in names
        )
    yardstick = Target(backend=ReferenceBackend, device=Device.from_arch("cpu"))
    return (*find_targets(backend), *([yardstick] if backend is None else []))


def open_target(target: Target, call: str) -> Backend:
    """The target's calls; the test is skipped where it does not promise this one."""
    if target.backend.capabilities is None or call not in required_calls(target.backend.capabilities):
        pytest.skip(f"{target.id} does not promise {call}")
    return target.backend(target.device)


def ints(values: list[int], where: str | None = "cpu") -> torch.Tensor:
    """int32."""
    return torch.tensor(values, dtype=torch.int32, device=where)
