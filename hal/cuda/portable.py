"""The shared Triton kernels on NVIDIA GPUs."""

from __future__ import annotations

from hal.common.backend import Backend


class CUDATriton(Backend):
    """The shared Triton kernels on NVIDIA GPUs. Its calls are not written yet."""

    name = "cuda:triton"
    platform = "cuda"
    libraries = ()
