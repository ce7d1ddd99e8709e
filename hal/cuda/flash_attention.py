"""FlashAttention 2, 3 and 4: sparse MLA, paged attention and attention over contiguous keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hal.common.contract.errors import BackendError
from hal.common.contract.masking import CAUSAL
from hal.common.contract.software import Library
from hal.common.vendor import AttentionInputs, VendorBackend, VendorLibrary, narrow, read_kernels

from .portable import CUDATriton

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache, PagedBatch, Segment, VarlenBatch
    from hal.common.contract.masking import Masking

_KERNELS = read_kernels("hal.cuda", "flash_attention.toml")


class FlashAttention(VendorBackend, CUDATriton):
    """Attention by whichever generation of the library the arch and the installation have; the other calls are inherited."""

    name = "cuda:flash_attention"
    platform = "cuda"
    libraries = ()
    alternatives: ClassVar[tuple[Library, ...]] = (
        VendorLibrary(name="flash_attn_3", distributions=("flash_attn_3", "flash-attn-3"), modules=("flash_attn_interface",)),
        VendorLibrary(name="flash_attn_4", distributions=("flash-attn-4",), modules=("cutlass",)),
        VendorLibrary(name="flash_attn", distributions=("flash-attn",), modules=("flash_attn_2_cuda",)),
        VendorLibrary(name="vllm_flash_attn", distributions=("vllm",), files=("vllm/vllm_flash_attn/_vllm_fa*_C*",)),
    )
    kernels = _KERNELS
    provides = frozenset({"paged_attention", "varlen_attention", "sparse_mla"})
    # The forward pass has no atomics, so equal calls give equal bits (the library's own statement of `deterministic`).
    capabilities = replace(
        narrow(CUDATriton.capabilities),
        archs=frozenset(arch for kernel in _KERNELS for arch in kernel.archs),
        dtypes=("bfloat16", "float16"),
        rank={"*": 10},
    )

    def paged_attention(
        self,
        q: torch.Tensor,
        cache: KVCache,
        batch: PagedBatch,
        *,
        softmax_scale: float,
        masking: Masking = CAUSAL,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        from hal.common.contract.call_values import refuse_sink
        from hal.common.contract.dense import dense_batch
        from hal.common.vendor.pages import require_pages
        from hal.common.vendor.tensors import (
            aligned_rows,
            check_cache,
            check_paged,
            empty_results,
            settle_results,
            visible_lengths,
        )

        from .flash_attention_calls import build_call, returned_lse
        from .flash_attention_inputs import page_inputs

        refuse_sink(sink, f"{self.name}.paged_attention")
        width = check_paged(q, cache, batch, out)
        if masking.chunk is not None:
            raise BackendError(
                f"{self.name} attends to no chunks (chunk is {masking.chunk}); selection gives such layers to another"
            )
        if not q.shape[0] or not batch.seq_lens.shape[0]:
            return empty_results(q, width, need_lse, out)
        kernel = self.choose_kernel("paged_attention", "mla" if cache.layout.name == "latent" else "attention")
        self.check_page(kernel, cache)
        check_cache(cache)
        q, batch = aligned_rows(q), require_pages(dense_batch(batch), cache, masking.window)
        inputs = page_inputs(q, cache, batch, softmax_scale, masking, need_lse, out)
        result, lse = returned_lse(self.resolver.call(build_call(kernel, inputs)), is_gather=False)
        lengths = visible_lengths(batch.query_start_loc, batch.seq_lens, q.shape[0], causal=masking.causal)
        return settle_results(result, lse if need_lse else None, lengths, q.shape[1], width, out)

    def varlen_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: VarlenBatch,
        *,
        softmax_scale: float,
        masking: Masking = CAUSAL,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if batch.selected is not None or masking.chunk is not None:
            # No generation takes a choice of keys per query here, nor chunks; the portable kernel does.
            return super().varlen_attention(
                q, k, v, batch, softmax_scale=softmax_scale, masking=masking, need_lse=need_lse, out=out
            )
        from hal.common.contract.dense import dense_numbers
        from hal.common.vendor.tensors import (
            aligned_rows,
            check_varlen,
            empty_results,
            pad_to,
            settle_results,
            visible_lengths,
            writable,
        )

        from .flash_attention_calls import build_call, returned_lse

        check_varlen(q, k, v, out)
        q, k, v = aligned_rows(q), aligned_rows(k), aligned_rows(v)
        q_start_loc = dense_numbers("q_start_loc", batch.q_start_loc)
        k_start_loc = dense_numbers("k_start_loc", batch.k_start_loc)
        key_lens = k_start_loc[1:] - k_start_loc[:-1]
        if not q.shape[0] or not key_lens.shape[0]:
            return empty_results(q, v.shape[2], need_lse, out)
        kernel = self.choose_kernel("varlen_attention", "mla")
        is_padded = kernel.pads_values and v.shape[2] < k.shape[2]
        inputs = AttentionInputs(
            q=q,
            k=k,
            v=pad_to(v, 2, k.shape[2]) if is_padded else v,
            query_start_loc=q_start_loc,
            key_start_loc=k_start_loc,
            key_lens=key_lens,
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            softmax_scale=softmax_scale,
            masking=masking,
            need_lse=need_lse,
            out=None if is_padded else writable(out),
        )
        result, lse = returned_lse(self.resolver.call(build_call(kernel, inputs)), is_gather=False)
        lengths = visible_lengths(q_start_loc, key_lens, q.shape[0], causal=masking.causal)
        return settle_results(result, lse if need_lse else None, lengths, q.shape[1], v.shape[2], out)

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
        from hal.common.vendor.tensors import aligned_rows, check_cache

        from .flash_attention_calls import build_call, build_gather_call, returned_lse
        from .flash_attention_inputs import gather_inputs, row_inputs

        refuse_sink(sink, f"{self.name}.sparse_mla")
        kernel = self.choose_kernel("sparse_mla", "sparse_mla")
        is_gather = bool(kernel.head_counts)
        q = aligned_rows(q)

        def attend(segment: Segment, need_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            check_cache(segment.cache)
            if is_gather:
                call = build_gather_call(kernel, *gather_inputs(kernel, q, segment, kv_lora_rank, softmax_scale, need_lse))
            else:
                call = build_call(kernel, row_inputs(q, segment, kv_lora_rank, softmax_scale, need_lse))
            return returned_lse(self.resolver.call(call), is_gather=is_gather)

        return merge_segments(attend, self.merge_states, q, segments, kv_lora_rank, need_lse, out)
