"""A layer of MLA, bound: its tensors checked, its latents and index keys written, and one step through its calls."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hal.common.contract.call_values import IndexInputs
from hal.common.contract.errors import BackendError, BatchError
from hal.common.contract.step import StepMetadata
from hal.common.contract.tensor_checks import Expected

from .index_owner import IndexOwner
from .latent import LatentAttention, LatentInputs, MLAWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentChoice:
    """What decides which keys a step attends to: the layer's own indexer's inputs, or ids made elsewhere."""

    index: IndexInputs | None
    topk: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayer:
    """way: how the layer attends, with its up-projections once they are bound. index: its own indexer, None without one."""

    way: LatentAttention
    index: IndexOwner | None

    def check(
        self,
        metadata: StepMetadata,
        inputs: LatentInputs,
        choice: LatentChoice,
        sink: torch.Tensor | None,
        out: torch.Tensor | None,
        *,
        is_written: bool,
    ) -> None:
        """Raise BatchError for what is missing or not wanted, LayoutError for a tensor of another shape or type.

        BackendError where the up-projections are missing.
        """
        bound, mla = self.way.bound, self.way.mla
        heads, is_absorbed = bound.num_heads, self.find_weights(inputs.q_nope) is None
        expected = bound.expect(metadata.num_tokens_padded)
        expected.check_activations(
            q_nope=(inputs.q_nope, (heads, mla.kv_lora_rank if is_absorbed else mla.qk_nope_head_dim)),
            q_rope=(inputs.q_rope, (heads, mla.qk_rope_head_dim)),
        )
        if not is_written:
            expected.check_activations(
                latent=(inputs.latent, (mla.kv_lora_rank,)), k_rope=(inputs.k_rope, (mla.qk_rope_head_dim,))
            )
        elif inputs.latent is not None or inputs.k_rope is not None:
            raise BatchError(f"layer {bound.layer.layer_id} has its latents written already; latent and k_rope must be None")
        expected.check_sink(bound.layer, sink, heads)
        expected.check_out(out, (heads, self.out_width(inputs.q_nope)), **inputs._asdict(), sink=sink)
        self._check_choice(metadata, choice, expected)

    def _check_choice(self, metadata: StepMetadata, choice: LatentChoice, expected: Expected) -> None:
        layer, state, index, topk = self.way.bound.layer, self.way.topk, choice.index, choice.topk
        if layer.indexer is None or state is None:
            if index is not None or topk is not None:
                raise BatchError(f"layer {layer.layer_id} has no indexer; index and topk must be None")
            return
        if index is not None and self.index is None:
            raise BatchError(f"layer {layer.layer_id} shares another layer's indexer; index must be None")
        if index is None and topk is None and self.index is not None:
            raise BatchError(f"layer {layer.layer_id} owns an indexer, so it needs index (or topk)")
        if topk is not None:
            expected.check_choice(topk, layer.indexer.width)
        if index is not None and self.index is not None:
            self.index.check(index, expected)
        elif topk is None:
            state.check(layer, metadata)

    def find_weights(self, q_nope: torch.Tensor) -> MLAWeights | None:
        """The layer's up-projections, None where the queries are absorbed already; BackendError where they are missing."""
        mla, weights = self.way.mla, self.way.weights
        is_ambiguous = mla.kv_lora_rank == mla.qk_nope_head_dim
        # What is no tensor of that shape at all is told apart by the checks of all tensors.
        width = getattr(q_nope, "shape", ())[-1:]
        if width == (mla.kv_lora_rank,) and not (is_ambiguous and weights is not None):
            return None
        if weights is None:
            layer_id = self.way.bound.layer.layer_id
            raise BackendError(f"layer {layer_id} has no up-projections yet; call bind_weights({layer_id}, w_uk, w_uv) once")
        return weights

    def out_width(self, q_nope: torch.Tensor) -> int:
        """The width of a head's result."""
        mla = self.way.mla
        return mla.kv_lora_rank if self.find_weights(q_nope) is None else mla.v_head_dim

    def write(self, inputs: LatentInputs, choice: LatentChoice, metadata: StepMetadata) -> None:
        """Write the step's latents and index keys, and choose its keys where the layer does, or take the choice given."""
        bound, place, index, topk = self.way.bound, self.way.place, choice.index, choice.topk
        if index is not None and self.index is not None:
            self.index.write(index, metadata)
            if topk is None:
                self.index.choose(index, metadata)
        if topk is not None and self.way.topk is not None:
            self.way.topk.take(bound.layer, topk, metadata)
        if bound.layer.owns_kv and inputs.latent is not None and inputs.k_rope is not None:
            bound.kernels.calls.write_cache(place.cache, place.slots(metadata), inputs.latent, inputs.k_rope)

    def attend(self, inputs: LatentInputs, metadata: StepMetadata, sink: torch.Tensor | None, out: torch.Tensor) -> None:
        """Write out [tokens, heads, out_width] of the queries, in the engine's order, over what the cache holds."""
        way = replace(self.way, weights=self.find_weights(inputs.q_nope), sink=sink)
        if inputs.latent is None and way.decompresses(metadata):
            inputs = self._read_written(inputs, metadata)
        way.attend(inputs, metadata, out)

    def _read_written(self, inputs: LatentInputs, metadata: StepMetadata) -> LatentInputs:
        """The inputs with the step's latents as its cache holds them; zeros for tokens that are written nowhere."""
        cache, slots = self.way.place.cache, self.way.place.slots(metadata)
        rows = slots // cache.block_size * cache.page_stride + slots % cache.block_size
        parts = self.way.bound.kernels.calls.gather_cache(cache, torch.where(slots < 0, -1, rows).int())
        latent, k_rope = (part.to(inputs.q_nope.dtype) for part in parts)
        return inputs._replace(latent=latent, k_rope=k_rope)
