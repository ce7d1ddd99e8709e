"""The shared Triton kernels on AMD GPUs."""

from __future__ import annotations

from hal.common.backend import Backend


class ROCmTriton(Backend):
    """The shared Triton kernels on AMD GPUs. Its calls are not written yet."""

    name = "rocm:triton"
    platform = "rocm"
    libraries = ()
