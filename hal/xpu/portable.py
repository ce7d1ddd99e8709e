"""The shared Triton kernels on Intel GPUs."""

from __future__ import annotations

from hal.common.backend import Backend


class XPUTriton(Backend):
    """The shared Triton kernels on Intel GPUs. Its calls are not written yet."""

    name = "xpu:triton"
    platform = "xpu"
    libraries = ()
