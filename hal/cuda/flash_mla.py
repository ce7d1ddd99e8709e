"""FlashMLA: sparse MLA over the rows of bfloat16 caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hal.common.contract.software import Library
from hal.common.vendor import VendorBackend, VendorLibrary, narrow, read_kernels

from .portable import CUDATriton

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import Segment

_KERNELS = read_kernels("hal.cuda", "flash_mla.toml")


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
        narrow(CUDATriton.capabilities),
        archs=frozenset(arch for kernel in _KERNELS for arch in kernel.archs),
        dtypes=("bfloat16",),
        rank={"*": 20},
        deterministic=False,
    )

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

        from .flash_mla_calls import build_sparse_call, returned_parts

        refuse_sink(sink, f"{self.name}.sparse_mla")
        kernel = self.choose_kernel("sparse_mla", "sparse_mla")
        padded = pad_to(aligned_rows(q), 1, kernel.padded_heads(q.shape[1]))

        def attend(segment: Segment, need_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            check_cache(segment.cache)
            call = build_sparse_call(kernel, padded, segment, kv_lora_rank=kv_lora_rank, softmax_scale=softmax_scale)
            result, lse = returned_parts(self.resolver.call(call))
            return result, lse if need_lse else None

        return merge_segments(attend, self.merge_states, q, segments, kv_lora_rank, need_lse, out)
