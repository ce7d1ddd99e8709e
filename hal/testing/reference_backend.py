"""A backend whose calls are the float64 reference: the suite's own yardstick, and a base for fakes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.capabilities import SINK_CALLS, Capabilities
from hal.common.contract.compressor import Compressor
from hal.common.contract.masking import CAUSAL, Masking
from hal.common.contract.parallel import Parallel

from . import reference

Attended = tuple[torch.Tensor, torch.Tensor | None]


class ReferenceBackend(Backend):
    """The reference as a backend on CPU tensors. It is not registered: hand it to conformance_cases, or subclass it."""

    name = "reference"
    platform = "cpu"
    capabilities = Capabilities(
        families=frozenset({"attention", "mla", "sparse_mla", "compressed"}),
        dtypes=("float32", "bfloat16", "float16", "float64"),
        kv_layouts={
            "attention": ("kv", "kv_fp8"),
            "mla": ("latent", "latent_fp8", "fp8_ds_mla"),
            "sparse_mla": ("latent", "latent_fp8", "fp8_ds_mla"),
            "compressed": ("latent", "compressed"),
        },
        index_layouts=("indexer", "indexer_fp8"),
        max_index_pool=8,
        window=True,
        sink=True,
        softcap=True,
        non_causal=True,
        chunk=True,
        dcp=True,
        key_ranges=True,
        lse=True,
        deterministic=True,
        masked_varlen=True,
        inner_sinks=SINK_CALLS,
    )

    def write_cache(self, cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        reference.write_rows(cache, slots, parts)

    def gather_cache(self, cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dtype = torch.float32 if cache.layout.is_quantised else cache.storage.dtype
        return tuple(part.to(dtype) for part in reference.gather_rows(cache, rows))

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
    ) -> Attended:
        state = reference.paged_attention(
            q,
            cache,
            batch,
            softmax_scale=softmax_scale,
            masking=masking,
        )
        return _deliver(state, q.dtype, need_lse, out, sink)

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
    ) -> Attended:
        state = reference.varlen_attention(q, k, v, batch, softmax_scale=softmax_scale, masking=masking)
        return _deliver(state, q.dtype, need_lse, out)

    def index_scores(
        self,
        iq: torch.Tensor,
        weights: torch.Tensor,
        cache: KVCache,
        batch: PagedBatch,
        chunk: IndexerChunk | None = None,
    ) -> torch.Tensor:
        return reference.index_scores(iq, weights, cache, batch, chunk).float()

    def select_topk(
        self, scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int, deterministic: bool = True
    ) -> torch.Tensor:
        del deterministic
        return reference.select_topk(scores, lengths, k, width)

    def expand_pools(
        self, topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, *, distinct: bool = False
    ) -> torch.Tensor:
        del distinct
        return reference.expand_pools(topk, lengths, pool, width)

    def rows_from_topk(
        self,
        topk: torch.Tensor,
        req_id: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        block_size: int,
        rows_per_page: int | None = None,
        parallel: Parallel,
        distinct: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del distinct
        return reference.rows_from_topk(
            topk,
            req_id,
            block_table,
            seq_lens,
            block_size=block_size,
            rows_per_page=rows_per_page,
            parallel=parallel,
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
    ) -> Attended:
        state = reference.sparse_mla(q, segments, kv_lora_rank=kv_lora_rank, softmax_scale=softmax_scale)
        return _deliver(state, q.dtype, need_lse, out, sink)

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = reference.merge_states(out_a, lse_a, out_b, lse_b)
        return out.to(out_a.dtype), lse.float()

    def apply_sink(self, out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        return reference.apply_sink(out, lse, sink).to(out.dtype)

    def compress_states(
        self,
        compressor: Compressor,
        states: KVCache,
        entries: KVCache,
        batch: CompressedBatch,
        *,
        ratio: int,
    ) -> None:
        reference.compress_states(compressor, states, entries, batch, ratio=ratio)


def _deliver(
    state: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
    need_lse: bool,
    out: torch.Tensor | None,
    sink: torch.Tensor | None = None,
) -> Attended:
    result = state[0] if sink is None else reference.apply_sink(*state, sink)
    result = result.to(dtype)
    return (result if out is None else out.copy_(result)), (state[1].float() if need_lse else None)
