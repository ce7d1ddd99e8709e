"""FlashInfer: sparse MLA on page 1, trtllm-gen and packed caches."""

from __future__ import annotations

from hal.common.contract.backend import Backend
from hal.common.contract.software import Library


class FlashInfer(Backend):
    """FlashInfer: sparse MLA on page 1, trtllm-gen and packed caches. Its calls are not written yet."""

    name = "cuda:flashinfer"
    platform = "cuda"
    libraries = (Library(name="flashinfer", distributions=("flashinfer-python",)),)
