"""vllm-xpu-kernels: dense attention and index scores."""

from __future__ import annotations

from hal.common.backend import Backend
from hal.common.software import Library


class XPUKernels(Backend):
    """vllm-xpu-kernels: dense attention and index scores. Its calls are not written yet."""

    name = "xpu:kernels"
    platform = "xpu"
    libraries = (Library(name="vllm_xpu_kernels", distributions=("vllm-xpu-kernels",)),)
