"""Attention of a compressed layer: its window's rows and the entries behind it, under one softmax with the sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hal.common.contract.call_values import IndexInputs, KVCache, PagedBatch, Segment
from hal.common.contract.compressor import Compressor
from hal.common.contract.dense import has_dense_rows
from hal.common.contract.errors import BatchError
from hal.common.contract.parallel import Parallel
from hal.common.contract.step import Phase, StepMetadata
from hal.common.contract.tensor_checks import Expected
from hal.config import LayerShape

from .choice import TopkState
from .layer_kernels import LayerKernels

Rows = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedCall:
    """What one layer's call reads: its calls, the cache and group of its window and of its entries, None without any."""

    layer: LayerShape
    kernels: LayerKernels
    window: tuple[KVCache, int]
    entries: tuple[KVCache, int] | None
    choice: TopkState | None
    parallel: Parallel


def check_compressed(layer: LayerShape, compressor: Compressor | None, index: IndexInputs | None, expected: Expected) -> None:
    """Raise BatchError where the compressor or the index inputs are missing or not wanted, LayoutError for their shapes."""
    if layer.owns_entries and compressor is None:
        raise BatchError(f"layer {layer.layer_id} makes an entry per {layer.compress_ratio} tokens, so it needs a compressor")
    if not layer.owns_entries and compressor is not None:
        reads = f"reads the entries of layer {layer.entry_source}" if layer.compress_ratio else "keeps its window alone"
        raise BatchError(f"layer {layer.layer_id} {reads}; compressor must be None")
    owns_index = layer.indexer is not None and layer.indexer.owns
    if owns_index != (index is not None):
        wanted = "owns an indexer, so it needs index" if owns_index else "owns no indexer; index must be None"
        raise BatchError(f"layer {layer.layer_id} {wanted}")
    if compressor is not None:
        if not isinstance(compressor, Compressor):
            raise BatchError(f"layer {layer.layer_id}: compressor is a {type(compressor).__name__}; expected hal.Compressor(...)")
        ratio = layer.compress_ratio or 1
        name, groups = f"layer {layer.layer_id}: compressor", layer.compress_span // ratio
        compressor.check(name, expected.tokens, ratio, groups, layer.head_dim, layer.rope_head_dim, expected.device)


class CompressedRows:
    """Rows of a step's windows, and of all entries where no indexer picks; layers of one cache group share them."""

    def __init__(self) -> None:
        self._step_id = -1
        self._rows: dict[tuple[Any, ...], Rows] = {}

    def find(self, call: CompressedCall, phase: Phase, metadata: StepMetadata) -> tuple[Segment, ...]:
        """The segments of a phase: the window first, then the entries that are seen."""
        if self._step_id != metadata.step_id:
            self._step_id, self._rows = metadata.step_id, {}
        cache, group = call.window
        batch = phase.batches[group]
        window = min(call.layer.window or batch.max_seq_len, batch.max_seq_len)
        segments = [Segment(cache, *self._last(call, cache, group, phase, phase.key_bounds, window))]
        if call.entries is None:
            return tuple(segments)
        cache, group = call.entries
        batch = phase.batches[group]
        if not batch.max_seq_len:
            return tuple(segments)
        if call.choice is not None:
            rows = call.choice.rows(call.layer, call.kernels, cache, group, phase, call.parallel)
        else:
            stops = phase.key_bounds if batch.key_stops is None else batch.key_stops
            rows = self._last(call, cache, group, phase, stops, batch.max_seq_len)
        return (*segments, Segment(cache, *rows))

    def _last(self, call: CompressedCall, cache: KVCache, group: int, phase: Phase, stops: torch.Tensor, count: int) -> Rows:
        """Rows of the last `count` positions before each token's stop."""
        key = (phase.tokens.start, group, cache.page_stride, count)
        if key not in self._rows:
            columns = torch.arange(count, dtype=torch.int32, device=stops.device)[None, :]
            ids = (stops - count).clamp(min=0)[:, None] + columns
            ids = torch.where(ids < stops[:, None], ids, ids.new_full((), -1))
            self._rows[key] = _convert(call, cache, phase.batches[group], phase.req_id, ids)
        return self._rows[key]


def _convert(call: CompressedCall, cache: KVCache, batch: PagedBatch, req_id: torch.Tensor, ids: torch.Tensor) -> Rows:
    rows: Rows = call.kernels.calls.rows_from_topk(
        ids,
        req_id,
        batch.block_table,
        batch.seq_lens,
        block_size=cache.block_size,
        rows_per_page=cache.page_stride,
        parallel=call.parallel,
        distinct=True,
    )
    return rows


def attend_compressed(
    call: CompressedCall,
    rows: CompressedRows,
    q: torch.Tensor,
    metadata: StepMetadata,
    sink: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write out [tokens, heads, head_dim] of q, all in the engine's order; the sink joins each denominator once."""
    order = metadata.token_order
    queries = q if order is None else q.index_select(0, order)
    is_direct = order is None and has_dense_rows(out)
    for phase in metadata.phases:
        target = out[phase.tokens] if is_direct else None
        result, _ = call.kernels.phases[phase.name].sparse_mla(
            queries[phase.tokens],
            rows.find(call, phase, metadata),
            kv_lora_rank=call.layer.head_dim,
            softmax_scale=call.layer.softmax_scale,
            out=target,
            sink=sink,
        )
        if order is not None:
            out.index_copy_(0, order[phase.tokens], result)
        elif not is_direct:
            out[phase.tokens] = result
