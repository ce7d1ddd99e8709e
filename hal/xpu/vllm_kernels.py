"""vllm-xpu-kernels: paged attention, dense MLA of few heads, and attention over contiguous keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hal.common.contract.errors import BackendError
from hal.common.contract.masking import CAUSAL
from hal.common.vendor import AttentionInputs, VendorBackend, VendorLibrary, narrow, read_kernels

from .portable import XPUTriton

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache, PagedBatch, VarlenBatch
    from hal.common.contract.masking import Masking

_KERNELS = read_kernels("hal.xpu", "vllm_kernels.toml")


class VLLMKernels(VendorBackend, XPUTriton):
    """Attention by vllm-xpu-kernels; sparse MLA and the other calls are inherited."""

    name = "xpu:vllm_kernels"
    former_names = ("xpu:kernels",)
    platform = "xpu"
    libraries = (VendorLibrary(name="vllm_xpu_kernels", distributions=("vllm-xpu-kernels",), modules=("vllm_xpu_kernels",)),)
    kernels = _KERNELS
    provides = frozenset({"paged_attention", "varlen_attention"})
    # Decode splits its keys over work-groups; whether they are added up in a fixed order is not stated. Graphs were refused
    # by every engine that used it.
    capabilities = replace(
        narrow(XPUTriton.capabilities),
        archs=frozenset(arch for kernel in _KERNELS for arch in kernel.archs),
        dtypes=("bfloat16", "float16"),
        rank={"*": 10},
        default_block_size=64,
        deterministic=False,
        graphs="never",
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
            check_paged,
            empty_results,
            readable_table,
            settle_results,
            split_pages,
            visible_lengths,
            writable,
        )

        from .vllm_kernels_calls import build_call, returned_lse

        refuse_sink(sink, f"{self.name}.paged_attention")
        width = check_paged(q, cache, batch, out)
        if masking.chunk is not None or masking.softcap is not None:
            raise BackendError(
                f"{self.name} knows neither chunks (chunk is {masking.chunk}) nor a softcap ({masking.softcap}); "
                "selection gives such layers to another"
            )
        if not q.shape[0] or not batch.seq_lens.shape[0]:
            return empty_results(q, width, need_lse, out)
        is_latent = cache.layout.name == "latent"
        kernel = self.choose_kernel("paged_attention", "mla" if is_latent else "attention")
        self.check_page(kernel, cache)
        batch = require_pages(dense_batch(batch), cache, masking.window)
        if is_latent:
            k = cache.storage[:, : cache.block_size].unsqueeze(2)
            v = k[..., :width]
        else:
            k, v = split_pages(cache)
        inputs = AttentionInputs(
            q=q.contiguous(),
            k=k,
            v=v,
            query_start_loc=batch.query_start_loc,
            key_lens=batch.seq_lens,
            block_table=readable_table(batch, cache.num_pages),
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            softmax_scale=softmax_scale,
            masking=masking,
            need_lse=need_lse,
            out=writable(out),
        )
        result, lse = returned_lse(self.resolver.call(build_call(kernel, inputs)))
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
        if batch.selected is not None or masking.softcap is not None or masking.chunk is not None:
            # The library takes neither a choice of keys per query nor a softcap nor chunks; the portable kernel does.
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

        from .vllm_kernels_calls import build_call, returned_lse

        check_varlen(q, k, v, out)
        k, v = aligned_rows(k), aligned_rows(v)
        q_start_loc = dense_numbers("q_start_loc", batch.q_start_loc)
        k_start_loc = dense_numbers("k_start_loc", batch.k_start_loc)
        key_lens = k_start_loc[1:] - k_start_loc[:-1]
        if not q.shape[0] or not key_lens.shape[0]:
            return empty_results(q, v.shape[2], need_lse, out)
        kernel = self.choose_kernel("varlen_attention", "mla")
        is_padded = kernel.pads_values and v.shape[2] < k.shape[2]
        inputs = AttentionInputs(
            q=q.contiguous(),
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
        result, lse = returned_lse(self.resolver.call(build_call(kernel, inputs)))
        lengths = visible_lengths(q_start_loc, key_lens, q.shape[0], causal=masking.causal)
        return settle_results(result, lse if need_lse else None, lengths, q.shape[1], v.shape[2], out)
