"""A layer of attention over pages, bound: its tensors checked, written, and one step through its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from hal.common.contract.dense import has_dense_rows
from hal.common.contract.errors import BatchError
from hal.common.contract.masking import Masking
from hal.common.contract.step import StepMetadata
from hal.common.contract.tensor_checks import refuse_overlap

from .places import BoundTo, Place
from .rank_attend import attend_shards
from .ranks import DCPGroup


class PagedInputs(NamedTuple):
    """A step's tensors, as attention.attend has them; is_written: the engine has written the keys and values already."""

    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    sink: torch.Tensor | None
    is_written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayer:
    """A layer's keys and values, its rule, and the shapes of a token's tensors on this rank; k_shape None: it owns no KV."""

    bound: BoundTo
    place: Place
    masking: Masking
    q_shape: tuple[int, int]
    out_shape: tuple[int, int]
    k_shape: tuple[int, ...] | None
    v_shape: tuple[int, ...]
    ranks: DCPGroup | None

    def check(self, metadata: StepMetadata, inputs: PagedInputs, out: torch.Tensor | None) -> None:
        """Raise BatchError for a tensor that is missing or not wanted, LayoutError for one of another shape or type."""
        layer, num_tokens = self.bound.layer, metadata.num_tokens_padded
        q, k, v, sink, is_written = inputs
        if self._fit(num_tokens, inputs, out):
            if out is not None:
                refuse_overlap(layer.layer_id, out, q=q, sink=sink)
            return
        expected = self.bound.expect(num_tokens)
        expected.check_activations(q=(q, self.q_shape))
        expected.check_sink(layer, sink, self.q_shape[0])
        expected.check_out(out, self.out_shape, q=q, sink=sink)
        if is_written or self.k_shape is None:
            if k is not None or v is not None:
                why = "has its keys written already" if is_written else f"reads the KV of layer {layer.kv_source}"
                raise BatchError(f"layer {layer.layer_id} {why}; k and v must be None")
        elif k is None or v is None:
            raise BatchError(f"layer {layer.layer_id} keeps its own KV, so it needs both k and v (or written=True)")
        else:
            expected.check_activations(k=(k, self.k_shape), v=(v, self.v_shape))

    def _fit(self, num_tokens: int, inputs: PagedInputs, out: torch.Tensor | None) -> bool:
        """Whether all are plainly right: asked first, since every layer of every step asks."""
        q, k, v, sink, is_written = inputs
        shapes: list[tuple[torch.Tensor, tuple[int, ...]]] = [(q, self.q_shape)]
        if self.k_shape is None or is_written:
            if k is not None or v is not None:
                return False
        elif k is None or v is None:
            return False
        else:
            shapes += [(k, self.k_shape), (v, self.v_shape)]
        if out is not None:
            shapes.append((out, self.out_shape))
        if (sink is not None) is not self.bound.layer.sink:
            return False
        dtype, device = self.bound.dtype, self.bound.device
        for tensor, shape in shapes:
            if not isinstance(tensor, torch.Tensor) or tensor.dtype is not dtype or tensor.device != device:
                return False
            if tensor.shape != (num_tokens, *shape):
                return False
        return sink is None or self._fits_sink(sink)

    def _fits_sink(self, sink: torch.Tensor) -> bool:
        if not isinstance(sink, torch.Tensor) or sink.device != self.bound.device:
            return False
        return sink.is_floating_point() and sink.shape == self.q_shape[:1]

    def write(self, inputs: PagedInputs, metadata: StepMetadata) -> None:
        """Write the step's keys and values, where there are any."""
        if inputs.k is not None and inputs.v is not None:
            self.bound.kernels.calls.write_cache(self.place.cache, self.place.slots(metadata), inputs.k, inputs.v)

    def attend(self, inputs: PagedInputs, metadata: StepMetadata, out: torch.Tensor) -> None:
        """Write out [tokens, heads, v_head_dim] of q, both in the engine's order, over what the cache holds."""
        q, sink = inputs.q, inputs.sink
        if self.ranks is not None:
            attend_shards(self.bound, self.place, q, metadata, sink, out, self.ranks)
            return
        kernels, order = self.bound.kernels, metadata.token_order
        cache, group = self.place
        queries = q if order is None else q.index_select(0, order)
        is_direct = order is None and has_dense_rows(out)
        for phase in metadata.phases:
            tokens = phase.tokens
            is_whole = tokens.stop - tokens.start == queries.shape[0]
            target = None
            if is_direct:
                target = out if is_whole else out[tokens]
            result, _ = kernels.phases[phase.name].paged_attention(
                queries if is_whole else queries[tokens],
                cache,
                phase.batches[group],
                softmax_scale=self.bound.layer.softmax_scale,
                masking=self.masking,
                out=target,
                sink=sink,
            )
            if order is not None:
                out.index_copy_(0, order[tokens], result)
            elif not is_direct:
                out[tokens] = result
