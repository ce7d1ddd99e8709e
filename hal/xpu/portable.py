"""The shared Triton kernels on Intel GPUs."""

from __future__ import annotations

from hal.common.triton.backend import PORTABLE, TritonBackend


class XPUTriton(TritonBackend):
    """The shared Triton kernels with the launch parameters of Intel GPUs."""

    name = "xpu:triton"
    platform = "xpu"
    package = "hal.xpu"
    capabilities = PORTABLE
