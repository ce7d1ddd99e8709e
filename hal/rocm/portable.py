"""The shared Triton kernels on AMD GPUs."""

from __future__ import annotations

from hal.common.triton.backend import PORTABLE, TritonBackend


class ROCmTriton(TritonBackend):
    """The shared Triton kernels with the launch parameters of AMD GPUs."""

    name = "rocm:triton"
    platform = "rocm"
    package = "hal.rocm"
    capabilities = PORTABLE
