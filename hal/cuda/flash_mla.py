"""FlashMLA: sparse MLA over the rows of bfloat16 caches, and over packed records in decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hal.common.contract.software import Library
from hal.common.vendor import VendorBackend, VendorLibrary, narrow, read_kernels

from .portable import CUDATriton

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import Segment
    from hal.common.contract.device import Device
    from hal.common.contract.step import StepMetadata
    from hal.common.vendor import KernelFacts

_KERNELS = read_kernels("hal.cuda", "flash_mla.toml")
_DECLARED = narrow(CUDATriton.capabilities)
_LAYOUTS = ("latent", "fp8_ds_mla")


class FlashMLA(VendorBackend, CUDATriton):
    """Sparse MLA by whichever copy of the library is installed; the other calls are inherited."""

    name = "cuda:flash_mla"
    platform = "cuda"
    libraries = ()
    alternatives: ClassVar[tuple[Library, ...]] = (
        VendorLibrary(name="flash_mla", distributions=("flash_mla", "sgl-flash-mla"), modules=("flash_mla",)),
        VendorLibrary(name="vllm_flash_mla", distributions=("vllm",), files=("vllm/_flashmla_C*",)),
    )
    kernels = _KERNELS
    provides = frozenset({"sparse_mla"})
    # After FlashAttention, which need not pad the few heads of a rank to 64. Equal bits are promised nowhere.
    capabilities = replace(
        _DECLARED,
        kv_layouts={**_DECLARED.kv_layouts, "sparse_mla": _LAYOUTS},
        # Index keys are the portable kernels' alone.
        index_layouts=CUDATriton.capabilities.index_layouts,
        archs=frozenset(arch for kernel in _KERNELS for arch in kernel.archs),
        dtypes=("bfloat16",),
        rank={"*": 20},
        deterministic=False,
    )

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._schedules: dict[tuple[int, ...], Any] = {}

    def prepare_step(self, step: StepMetadata, buffers: Mapping[str, torch.Tensor]) -> None:
        """Forget the schedules of the last step: the library fills one when it is first used, for all layers of a step."""
        self._schedules.clear()

    def sparse_mla(
        self,
        q: torch.Tensor,
        segments: Sequence[Segment],
        *,
        kv_lora_rank: int,
        softmax_scale: float,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        from hal.common.contract.call_values import refuse_sink
        from hal.common.vendor.segments import merge_segments
        from hal.common.vendor.tensors import aligned_rows, check_cache, pad_to

        from .flash_mla_calls import build_record_call, build_sparse_call, returned_parts, returned_records

        refuse_sink(sink, f"{self.name}.sparse_mla")
        q = aligned_rows(q)
        terms: dict[str, Any] = {"kv_lora_rank": kv_lora_rank, "softmax_scale": softmax_scale}

        def attend(segment: Segment, need_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            check_cache(segment.cache)
            kernel = self.choose_kernel("sparse_mla", "sparse_mla", layout=segment.cache.layout.name)
            padded = pad_to(q, 1, kernel.padded_heads(q.shape[1]))
            if kernel.api == "records":
                self.check_page(kernel, segment.cache)
                schedule = self._find_schedule(kernel, padded, segment)
                returned = self.resolver.call(build_record_call(kernel, padded, segment, schedule, **terms))
                result, lse = returned_records(returned)
            else:
                result, lse = returned_parts(self.resolver.call(build_sparse_call(kernel, padded, segment, **terms)))
            return result, lse if need_lse else None

        return merge_segments(attend, self.merge_states, q, segments, kv_lora_rank, need_lse, out, _LAYOUTS)

    def _find_schedule(self, kernel: KernelFacts, q: torch.Tensor, segment: Segment) -> Any:
        """The step's schedule of calls of this size, which depends on nothing else where every list is as long."""
        from .flash_mla_calls import build_schedule_call

        key = (*q.shape, segment.rows.shape[1])
        if key not in self._schedules:
            self._schedules[key] = self.resolver.call(build_schedule_call(kernel))[0]
        return self._schedules[key]
