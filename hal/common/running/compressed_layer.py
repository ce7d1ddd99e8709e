"""A compressed layer, bound: its window's rows and the entries behind it, under one softmax with the sink."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hal.common.contract.call_values import IndexInputs, Segment
from hal.common.contract.compressor import Compressor
from hal.common.contract.dense import has_dense_rows
from hal.common.contract.errors import BatchError
from hal.common.contract.parallel import Parallel
from hal.common.contract.step import Phase, StepMetadata
from hal.common.contract.tensor_checks import Expected

from .choice import TopkState
from .compressed_rows import CompressedRows
from .compressing import compress
from .index_owner import IndexOwner
from .places import BoundTo, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedInputs:
    """A step's queries and what there is of its keys, as attention.attend_compressed has them."""

    q: torch.Tensor
    kv: torch.Tensor | None
    compressor: Compressor | None
    index: IndexInputs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedLayer:
    """window: where the layer's own rows are; entries: those it reads, None without any; states: what it makes them of.

    index: its own indexer, None without one. topk: whose choice of entries it follows, None where it sees all.
    """

    bound: BoundTo
    window: Place
    entries: Place | None
    states: Place | None
    index: IndexOwner | None
    topk: TopkState | None
    rows: CompressedRows
    parallel: Parallel

    def check(
        self, metadata: StepMetadata, inputs: CompressedInputs, sink: torch.Tensor | None, out: torch.Tensor | None
    ) -> None:
        """Raise BatchError for what is missing or not wanted, LayoutError for a tensor of another shape or type."""
        layer, q, kv = self.bound.layer, inputs.q, inputs.kv
        shape = (self.bound.num_heads, layer.head_dim)
        expected = self.bound.expect(metadata.num_tokens_padded)
        expected.check_activations(q=(q, shape))
        expected.check_sink(layer, sink, self.bound.num_heads)
        expected.check_out(out, shape, q=q, sink=sink)
        if layer.owns_kv != (kv is not None):
            wanted = "keeps its own KV, so it needs kv" if layer.owns_kv else "reads kv elsewhere"
            raise BatchError(f"layer {layer.layer_id} {wanted}")
        if kv is not None:
            expected.check_activations(kv=(kv, (layer.head_dim,)))
        self._check_compressor(inputs, expected)
        if inputs.index is not None and self.index is not None:
            self.index.check(inputs.index, expected)
        elif self.topk is not None:
            self.topk.check(layer, metadata)

    def _check_compressor(self, inputs: CompressedInputs, expected: Expected) -> None:
        layer, compressor = self.bound.layer, inputs.compressor
        if layer.owns_entries and compressor is None:
            raise BatchError(f"layer {layer.layer_id} makes an entry per {layer.compress_ratio} tokens, so it needs a compressor")
        if not layer.owns_entries and compressor is not None:
            reads = f"reads the entries of layer {layer.entry_source}" if layer.compress_ratio else "keeps its window alone"
            raise BatchError(f"layer {layer.layer_id} {reads}; compressor must be None")
        if (self.index is not None) != (inputs.index is not None):
            wanted = "owns an indexer, so it needs index" if self.index is not None else "owns no indexer; index must be None"
            raise BatchError(f"layer {layer.layer_id} {wanted}")
        if compressor is None:
            return
        if not isinstance(compressor, Compressor):
            raise BatchError(f"layer {layer.layer_id}: compressor is a {type(compressor).__name__}; expected hal.Compressor(...)")
        ratio = layer.compress_ratio or 1
        name, groups = f"layer {layer.layer_id}: compressor", layer.compress_span // ratio
        compressor.check(name, expected.tokens, ratio, groups, layer.head_dim, layer.rope_head_dim, expected.device)

    def write(self, inputs: CompressedInputs, metadata: StepMetadata) -> None:
        """Write the step's rows, its states and the entries they close, and its index keys, of which the best are chosen."""
        kernels, layer = self.bound.kernels, self.bound.layer
        if inputs.kv is not None:
            cache = self.window.cache
            kernels.calls.write_cache(cache, self.window.slots(metadata), *inputs.kv.split(cache.layout.widths, dim=1))
        if inputs.compressor is not None:
            if self.entries is None or self.states is None:
                raise TypeError(f"layer {layer.layer_id} makes entries and has no cache for them or for their states")
            compress(kernels, inputs.compressor, self.states, self.entries, metadata, layer.compress_ratio or 1)
        if inputs.index is not None and self.index is not None:
            self.index.write(inputs.index, metadata)
            self.index.choose(inputs.index, metadata)

    def attend(self, q: torch.Tensor, metadata: StepMetadata, sink: torch.Tensor | None, out: torch.Tensor) -> None:
        """Write out [tokens, heads, head_dim] of q, all in the engine's order; the sink joins each denominator once."""
        kernels, layer, order = self.bound.kernels, self.bound.layer, metadata.token_order
        queries = q if order is None else q.index_select(0, order)
        is_direct = order is None and has_dense_rows(out)
        for phase in metadata.phases:
            target = out[phase.tokens] if is_direct else None
            result, _ = kernels.phases[phase.name].sparse_mla(
                queries[phase.tokens],
                self._segments(phase, metadata),
                kv_lora_rank=layer.head_dim,
                softmax_scale=layer.softmax_scale,
                out=target,
                sink=sink,
            )
            if order is not None:
                out.index_copy_(0, order[phase.tokens], result)
            elif not is_direct:
                out[phase.tokens] = result

    def _segments(self, phase: Phase, metadata: StepMetadata) -> tuple[Segment, ...]:
        """The lists of a phase: the window first, then the entries that are seen."""
        calls, batch, found = self.bound.kernels.calls, phase.batches[self.window.group], self.rows.of_step(metadata)
        count = min(self.bound.layer.window or batch.max_seq_len, batch.max_seq_len)
        last = found.find_last(calls, self.window, phase, phase.key_bounds, count)
        segments = (Segment(self.window.cache, *last),)
        if self.entries is None:
            return segments
        batch = phase.batches[self.entries.group]
        if not batch.max_seq_len:
            return segments
        if self.topk is not None:
            rows = self.topk.rows(self.bound.layer, self.bound.kernels, *self.entries, phase, self.parallel)
        else:
            stops = phase.key_bounds if batch.key_stops is None else batch.key_stops
            rows = found.find_last(calls, self.entries, phase, stops, batch.max_seq_len)
        return (*segments, Segment(self.entries.cache, *rows))
