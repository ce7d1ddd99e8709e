"""A layer of attention over pages, bound: its tensors checked, written, and one step through its calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hal.common.contract.dense import has_dense_rows
from hal.common.contract.errors import BatchError
from hal.common.contract.masking import Masking
from hal.common.contract.step import StepMetadata

from .places import BoundTo, Place
from .rank_attend import attend_shards
from .ranks import DCPGroup


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

    def check(
        self,
        metadata: StepMetadata,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        sink: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> None:
        """Raise BatchError for a tensor that is missing or not wanted, LayoutError for one of another shape or type."""
        layer, num_tokens = self.bound.layer, metadata.num_tokens_padded
        if sink is None and out is None and not layer.sink and self._fit(num_tokens, q, k, v):
            return
        expected = self.bound.expect(num_tokens)
        expected.check_activations(q=(q, self.q_shape))
        expected.check_sink(layer, sink, self.q_shape[0])
        expected.check_out(out, self.out_shape, q=q, sink=sink)
        if self.k_shape is None:
            if k is not None or v is not None:
                raise BatchError(f"layer {layer.layer_id} reads the KV of layer {layer.kv_source}; k and v must be None")
        elif k is None or v is None:
            raise BatchError(f"layer {layer.layer_id} keeps its own KV, so it needs both k and v")
        else:
            expected.check_activations(k=(k, self.k_shape), v=(v, self.v_shape))

    def _fit(self, num_tokens: int, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None) -> bool:
        """Whether all three are plainly right: asked first, since every layer of every step asks."""
        dtype, device = self.bound.dtype, self.bound.device
        if not all(each is None or isinstance(each, torch.Tensor) for each in (k, v)) or not isinstance(q, torch.Tensor):
            return False
        if q.dtype is not dtype or q.device != device or q.shape != (num_tokens, *self.q_shape):
            return False
        if k is None or v is None or self.k_shape is None:
            return k is None and v is None and self.k_shape is None
        return (
            k.dtype is dtype
            and v.dtype is dtype
            and k.device == device
            and v.device == device
            and k.shape == (num_tokens, *self.k_shape)
            and v.shape == (num_tokens, *self.v_shape)
        )

    def write(self, k: torch.Tensor | None, v: torch.Tensor | None, metadata: StepMetadata) -> None:
        """Write the step's keys and values, where the layer owns any."""
        if k is not None and v is not None:
            self.bound.kernels.calls.write_cache(self.place.cache, self.place.slots(metadata), k, v)

    def attend(self, q: torch.Tensor, metadata: StepMetadata, sink: torch.Tensor | None, out: torch.Tensor) -> None:
        """Write out [tokens, heads, v_head_dim] of q, both in the engine's order, over what the cache holds."""
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
