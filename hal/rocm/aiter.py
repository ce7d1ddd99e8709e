"""AITER: sparse MLA by its MLA decode kernel, paged attention by its unified kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hal.common.contract.errors import BackendError, LayoutError
from hal.common.contract.masking import CAUSAL, Masking
from hal.common.vendor import AttentionInputs, VendorBackend, VendorLibrary, narrow, read_kernels

from .portable import ROCmTriton

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache, PagedBatch, Segment

_KERNELS = read_kernels("hal.rocm", "aiter.toml")


class Aiter(VendorBackend, ROCmTriton):
    """Attention by AITER on the data-centre archs; the other calls are inherited."""

    name = "rocm:aiter"
    platform = "rocm"
    libraries = (VendorLibrary(name="aiter", distributions=("amd-aiter",), modules=("aiter",)),)
    kernels = _KERNELS
    provides = frozenset({"paged_attention", "sparse_mla"})
    # Whether splits are added up in a fixed order is not stated anywhere, so equal bits are not promised.
    capabilities = replace(
        narrow(ROCmTriton.capabilities),
        archs=frozenset(arch for kernel in _KERNELS for arch in kernel.archs),
        dtypes=("bfloat16", "float16"),
        rank={"*": 10},
        deterministic=False,
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
            check_paged,
            empty_results,
            readable_table,
            settle_results,
            split_pages,
            visible_lengths,
            writable,
        )

        from .aiter_calls import build_unified_call

        refuse_sink(sink, f"{self.name}.paged_attention")
        width = check_paged(q, cache, batch, out)
        if need_lse or masking != Masking(softcap=masking.softcap) or cache.layout.name != "kv":
            raise BackendError(
                f"{self.name} attends causally over K and V pages and returns no LSE; this call has need_lse={need_lse}, "
                f"{masking}, layout {cache.layout.name!r}: selection gives such layers to another"
            )
        if batch.max_query_len > 1:
            raise BackendError(
                f"{self.name} attends one query a request; this call has up to {batch.max_query_len}: selection gives prefill "
                "and drafted tokens to another"
            )
        if not q.shape[0] or not batch.seq_lens.shape[0]:
            return empty_results(q, width, False, out)
        kernel = self.choose_kernel("paged_attention", "attention")
        self.check_page(kernel, cache)
        k, v = split_pages(cache)
        q, batch, target = aligned_rows(q), require_pages(dense_batch(batch), cache, None), writable(out)
        result = q.new_empty(*q.shape[:2], width) if target is None else target
        inputs = AttentionInputs(
            q=q,
            k=k,
            v=v,
            query_start_loc=batch.query_start_loc,
            key_lens=batch.seq_lens,
            block_table=readable_table(batch, cache.num_pages),
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            softmax_scale=softmax_scale,
            masking=masking,
            out=result,
        )
        self.resolver.call(build_unified_call(kernel, inputs))
        lengths = visible_lengths(batch.query_start_loc, batch.seq_lens, q.shape[0], causal=True)
        return settle_results(result, None, lengths, q.shape[1], width, out)

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
        from hal.common.vendor.tensors import pad_to, rows_to_csr

        from .aiter_calls import build_mla_call

        refuse_sink(sink, f"{self.name}.sparse_mla")
        kernel = self.choose_kernel("sparse_mla", "sparse_mla")
        heads = kernel.padded_heads(q.shape[1])

        def attend(segment: Segment, need_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
            rows = segment.cache.rows
            if rows.stride(0) != rows.shape[1]:
                raise LayoutError(
                    f"cache rows of {rows.shape[1]} elements lie {rows.stride(0)} apart; {self.name} needs them dense"
                )
            # Nothing is said of empty lists: they get one row that exists, and their results are replaced afterwards.
            indptr, indices = rows_to_csr(segment.rows.clamp(min=0), segment.valid.clamp(min=1))
            result = q.new_empty(q.shape[0], heads, kv_lora_rank)
            call = build_mla_call(
                kernel,
                pad_to(q, 1, heads).contiguous(),
                rows,
                indptr,
                indices,
                result,
                softmax_scale=softmax_scale,
                need_lse=need_lse,
            )
            returned = self.resolver.call(call)
            return result, returned[1] if need_lse else None

        return merge_segments(attend, self.merge_states, q, segments, kv_lora_rank, need_lse, out)
