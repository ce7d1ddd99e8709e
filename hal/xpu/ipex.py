"""The legacy paged attention of Intel's torch extension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hal.common.contract.errors import BackendError
from hal.common.contract.masking import CAUSAL
from hal.common.vendor import AttentionInputs, VendorBackend, VendorLibrary, narrow, read_kernels

from .portable import XPUTriton

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache, PagedBatch
    from hal.common.contract.masking import Masking

_KERNELS = read_kernels("hal.xpu", "ipex.toml")


class IPEX(VendorBackend, XPUTriton):
    """Causal paged attention by the extension, for machines that still have it; the other calls are inherited."""

    name = "xpu:ipex"
    platform = "xpu"
    libraries = (
        VendorLibrary(name="ipex", distributions=("intel-extension-for-pytorch",), modules=("intel_extension_for_pytorch",)),
    )
    kernels = _KERNELS
    provides = frozenset({"paged_attention"})
    # Ranked behind the maintained library: this one gets no more fixes.
    capabilities = replace(
        narrow(XPUTriton.capabilities),
        archs=frozenset(arch for kernel in _KERNELS for arch in kernel.archs),
        dtypes=("bfloat16", "float16"),
        rank={"*": 20},
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
        import torch

        from hal.common.contract.call_values import refuse_sink
        from hal.common.contract.dense import dense_batch
        from hal.common.vendor.pages import require_pages
        from hal.common.vendor.tensors import (
            check_paged,
            empty_results,
            readable_table,
            settle_results,
            split_pages,
            token_requests,
            visible_lengths,
        )

        from .ipex_calls import build_decode_call, build_prefill_call

        refuse_sink(sink, f"{self.name}.paged_attention")
        width = check_paged(q, cache, batch, out)
        if need_lse or masking != CAUSAL or cache.layout.name != "kv":
            raise BackendError(
                f"{self.name} attends causally to all K and V pages and returns no LSE; this call has need_lse={need_lse}, "
                f"{masking}, layout {cache.layout.name!r}: selection gives such layers to another"
            )
        tokens, requests = q.shape[0], batch.seq_lens.shape[0]
        if not tokens or not requests or not cache.num_pages:
            return empty_results(q, width, False, out)
        phase = "decode" if batch.max_query_len == 1 else "prefill"
        kernel = self.choose_kernel("paged_attention", "attention", phase)
        self.check_page(kernel, cache)
        batch = require_pages(dense_batch(batch), cache, None)
        # The library keeps the heads of a page together, [pages, kv_heads, page, width].
        k, v = (pages.transpose(1, 2) for pages in split_pages(cache))
        lengths = visible_lengths(batch.query_start_loc, batch.seq_lens, tokens, causal=True)
        q, result = q.contiguous(), q.new_empty(*q.shape[:2], width)
        table = readable_table(batch, cache.num_pages)
        inputs = AttentionInputs(
            q=q,
            k=k,
            v=v,
            query_start_loc=batch.query_start_loc,
            key_lens=batch.seq_lens,
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            softmax_scale=softmax_scale,
            out=result,
        )
        if phase == "decode":
            # One row per query, not per request: requests without a query would shift the rows. An empty list of keys is
            # not said to work, so it gets one, and its result is replaced afterwards.
            request = token_requests(batch.query_start_loc, tokens).clamp(max=requests - 1)
            inputs = replace(inputs, block_table=table[request], key_lens=lengths.clamp(min=1))
            self.resolver.call(build_decode_call(kernel, inputs))
        else:
            # The prefill kernel takes no strides: it gets the batch's pages as dense copies, one after another.
            table = table[:, : -(-batch.max_seq_len // cache.block_size)]
            k, v = (pages[table.reshape(-1)].contiguous() for pages in (k, v))
            numbered = torch.arange(table.numel(), dtype=torch.int32, device=q.device).view_as(table)
            self.resolver.call(build_prefill_call(kernel, replace(inputs, k=k, v=v, block_table=numbered)))
        return settle_results(result, None, lengths, q.shape[1], width, out)
