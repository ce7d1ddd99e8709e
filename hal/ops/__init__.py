"""The calls of the contract as torch operators; not written yet, and saying so when one is asked for."""

from __future__ import annotations

from typing import Any

from hal.common.errors import NotBuiltError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'hal.ops' has no attribute {name!r}")
    raise NotBuiltError(f"hal.ops.{name} is not written yet; hal.kernels(backend) has the calls themselves")
