"""The shared Triton kernels on NVIDIA GPUs."""

from __future__ import annotations

from hal.common.triton.backend import PORTABLE, TritonBackend


class CUDATriton(TritonBackend):
    """The shared Triton kernels with the launch parameters of NVIDIA GPUs."""

    name = "cuda:triton"
    platform = "cuda"
    package = "hal.cuda"
    capabilities = PORTABLE
