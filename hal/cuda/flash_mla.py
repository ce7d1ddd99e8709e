"""FlashMLA decode and DeepGEMM index scores."""

from __future__ import annotations

from hal.common.contract.backend import Backend
from hal.common.contract.software import Library


class FlashMLA(Backend):
    """FlashMLA decode and DeepGEMM index scores. Its calls are not written yet."""

    name = "cuda:flash_mla"
    platform = "cuda"
    libraries = (
        Library(name="flash_mla", distributions=("flash_mla", "sgl-flash-mla")),
        Library(name="deep_gemm", distributions=("deep_gemm", "sgl-deep-gemm")),
    )
