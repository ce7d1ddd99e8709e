"""The CPU backend: every call in plain torch, the embedded default and the reference of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import SINK_CALLS, Capabilities
from hal.common.contract.masking import CAUSAL

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
    from hal.common.contract.compressor import Compressor
    from hal.common.contract.device import Device
    from hal.common.contract.masking import Masking
    from hal.common.contract.parallel import Parallel

_LATENTS = ("latent", "latent_fp8", "fp8_ds_mla")


class CPUBackend(Backend):
    """Kernel calls on the CPU. Arithmetic is fp32 whatever the storage (float64 for float64), as hal.cpu.numbers says."""

    name = "cpu"
    platform = "cpu"
    capabilities = Capabilities(
        families=frozenset({"attention", "mla", "sparse_mla", "compressed"}),
        dtypes=("float32", "bfloat16", "float16", "float64"),
        kv_layouts={
            "attention": ("kv", "kv_fp8"),
            "mla": _LATENTS,
            "sparse_mla": _LATENTS,
            "compressed": ("latent", "compressed"),
        },
        index_layouts=("indexer", "indexer_fp8"),
        max_index_pool=128,
        rank={"*": 0},
        window=True,
        sink=True,
        softcap=True,
        non_causal=True,
        chunk=True,
        dcp=True,
        key_ranges=True,
        lse=True,
        deterministic=True,
        max_spec_tokens=64,
        masked_varlen=True,
        inner_sinks=SINK_CALLS,
        arithmetic={"bfloat16": "float32", "float16": "float32"},
    )

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        # Here and not at the top of the file: torch is loaded when a backend is opened, not when it is registered.
        from . import cache, compress, indexer, merge, paged, sparse, topk, varlen

        self._compress = compress
        self._cache, self._indexer, self._merge = cache, indexer, merge
        self._paged, self._sparse, self._topk, self._varlen = paged, sparse, topk, varlen

    def write_cache(self, cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        self._cache.write_rows(cache, slots, parts)

    def gather_cache(self, cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._cache.gather_rows(cache, rows)

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
        if sink is None:
            return self._paged.attend_pages(q, cache, batch, masking, softmax_scale, need_lse, out)
        self._merge.check_inner_sink(q, sink, out)
        state = self._paged.attend_pages(q, cache, batch, masking, softmax_scale, True, out)
        return self._merge.add_sink(state, sink, need_lse)

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
        return self._varlen.attend_varlen(q, k, v, batch, masking, softmax_scale, need_lse, out)

    def index_scores(
        self,
        iq: torch.Tensor,
        weights: torch.Tensor,
        cache: KVCache,
        batch: PagedBatch,
        chunk: IndexerChunk | None = None,
    ) -> torch.Tensor:
        return self._indexer.score_keys(iq, weights, cache, batch, chunk)

    def select_topk(
        self, scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int, deterministic: bool = True
    ) -> torch.Tensor:
        return self._topk.select_topk(scores, lengths, k, width)

    def expand_pools(
        self, topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, *, distinct: bool = False
    ) -> torch.Tensor:
        return self._topk.expand_pools(topk, lengths, pool, width, distinct)

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
        stride = rows_per_page or block_size
        return self._topk.rows_from_topk(topk, req_id, block_table, seq_lens, block_size, stride, parallel, distinct)

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
        if sink is None:
            return self._sparse.attend_rows(q, segments, kv_lora_rank, softmax_scale, need_lse, out)
        self._merge.check_inner_sink(q, sink, out)
        state = self._sparse.attend_rows(q, segments, kv_lora_rank, softmax_scale, True, out)
        return self._merge.add_sink(state, sink, need_lse)

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._merge.merge_states(out_a, lse_a, out_b, lse_b)

    def apply_sink(self, out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        return self._merge.apply_sink(out, lse, sink)

    def compress_states(
        self,
        compressor: Compressor,
        states: KVCache,
        entries: KVCache,
        batch: CompressedBatch,
        *,
        ratio: int,
    ) -> None:
        self._compress.compress_states(compressor, states, entries, batch, ratio)
