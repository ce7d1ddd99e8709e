"""MLA of one step: absorbed over the latent cache, or decompressed to heads, run by run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hal.common.contract.call_values import KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.exchanges import heads_at_once
from hal.common.contract.masking import Masking
from hal.common.contract.parallel import Parallel
from hal.common.contract.step import ContextChunk, MLAKind, MLARun, Phase, StepMetadata
from hal.common.planning.buffers import MAX_EXPANDED_BYTES
from hal.config import MLAShape

from .choice import TopkState
from .layer_kernels import require_lse
from .places import BoundTo, Place
from .ranks import DCPGroup

_EVERYTHING = Masking(causal=False)


class LatentInputs(NamedTuple):
    """A step's queries and latents, as attention.attend_mla has them; latents that are written already may be None."""

    q_nope: torch.Tensor
    q_rope: torch.Tensor
    latent: torch.Tensor | None
    k_rope: torch.Tensor | None

    def pick(self, tokens: torch.Tensor | slice) -> LatentInputs:
        """Those of some tokens."""
        return LatentInputs(
            self.q_nope[tokens],
            self.q_rope[tokens],
            None if self.latent is None else self.latent[tokens],
            None if self.k_rope is None else self.k_rope[tokens],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAWeights:
    """An MLA layer's up-projections of this rank's heads: w_uk [heads, nope, lora], w_uv [heads, v, lora]."""

    w_uk: torch.Tensor
    w_uv: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """How a layer attends to its latents: the same over the runs of a call.

    kind: which of a step's runs are its own, None where it takes the absorbed form alone. topk: whose choice of keys it follows,
    None on a dense layer. can_mask: a choice is heeded over contiguous keys, too. weights None: queries come absorbed.
    """

    bound: BoundTo
    mla: MLAShape
    place: Place
    masking: Masking
    kind: MLAKind | None
    parallel: Parallel
    can_mask: bool
    topk: TopkState | None = None
    ranks: DCPGroup | None = None
    weights: MLAWeights | None = None
    sink: torch.Tensor | None = None

    def attend(self, inputs: LatentInputs, metadata: StepMetadata, out: torch.Tensor) -> None:
        """Write out [tokens, heads, v_head_dim], of absorbed queries [tokens, heads, lora], all in the engine's order.

        Over DCP ranks every phase takes two collectives: absorbed queries before, partial results after.
        """
        order = metadata.token_order
        ordered = inputs if order is None else inputs.pick(order)
        for phase in metadata.phases:
            tokens = phase.tokens
            target = out[tokens] if order is None else out.new_empty((tokens.stop - tokens.start, *out.shape[1:]))
            piece = ordered.pick(tokens)
            runs = phase.runs.get(self.kind, ()) if self.weights is not None and self.kind is not None else ()
            if not runs:
                self._attend_absorbed(phase, slice(0, tokens.stop - tokens.start), self._batch(phase), piece, target)
            for run in runs:
                self._attend_run(phase, run, piece, target)
            if runs and runs[-1].tokens.stop < target.shape[0]:
                # Runs end where the host's lengths do; padded tokens of a device batch come after.
                target[runs[-1].tokens.stop :].zero_()
            if order is not None:
                out.index_copy_(0, order[tokens], target)

    def decompresses(self, metadata: StepMetadata) -> bool:
        """Whether any of a step's runs may take the form whose keys are made of the step's own latents."""
        if self.weights is None or self.kind is None:
            return False
        return any(run.form != "absorbed" for phase in metadata.phases for run in phase.runs.get(self.kind, ()))

    def _batch(self, phase: Phase) -> PagedBatch:
        if self.ranks is None or self.topk is not None:
            return phase.batches[self.place.group]
        return phase.shards[self.masking.sight][self.place.group]

    def _attend_run(self, phase: Phase, run: MLARun, inputs: LatentInputs, out: torch.Tensor) -> None:
        is_masked = self._leaves_keys_out(run)
        if run.form == "absorbed" or (is_masked and not self.can_mask):
            table = phase.batches[self.place.group]
            batch = PagedBatch(
                run.q_start_loc,
                table.seq_lens[run.requests],
                table.block_table[run.requests],
                run.max_query_len,
                run.max_seq_len,
                memo={},
            )
            self._attend_absorbed(phase, run.tokens, batch, inputs, out)
        else:
            self._attend_decompressed(phase, run, inputs, out, is_masked)
            if phase.may_hide_requests:
                # New tokens are keys of this form whatever the device knows of their request.
                out[run.tokens].masked_fill_((phase.key_bounds[run.tokens] == 0)[:, None, None], 0)

    def _leaves_keys_out(self, run: MLARun) -> bool:
        """Whether the layer's choice may be of fewer keys than a request of the run has."""
        layer = self.bound.layer
        if self.topk is None or layer.indexer is None:
            return False
        return run.max_seq_len > layer.indexer.topk or self.topk.is_explicit(layer)

    def _attend_absorbed(self, phase: Phase, tokens: slice, batch: PagedBatch, inputs: LatentInputs, out: torch.Tensor) -> None:
        """Every head attends to the latent rows themselves: queries through w_uk before, results through w_uv after."""
        q_nope, q_rope = inputs.q_nope[tokens], inputs.q_rope[tokens]
        latent_q = q_nope if self.weights is None else _project(q_nope, self.weights.w_uk)
        q = torch.cat([latent_q, q_rope.to(latent_q.dtype)], dim=-1)
        if self.ranks is None:
            result, _ = self._attend_rows(phase, tokens, batch, q, sink=self.sink)
            out[tokens] = result if self.weights is None else _project(result, self.weights.w_uv.transpose(1, 2))
            return
        for heads in self._exchanges(q):
            result = self._attend_over_ranks(self.ranks, phase, tokens, batch, q[:, heads], heads)
            weights = self.weights
            out[tokens, heads] = result if weights is None else _project(result, weights.w_uv[heads].transpose(1, 2))

    def _exchanges(self, q: torch.Tensor) -> Iterator[slice]:
        """Runs of this rank's heads whose queries and partial results go in one exchange, the same on every rank."""
        heads, size = q.shape[1], q.element_size()
        row_bytes = size * (self.mla.kv_lora_rank + (4 // size or 1))
        step = heads_at_once(heads, self.parallel.dcp, q.shape[0], row_bytes)
        return (slice(start, start + step) for start in range(0, heads, step))

    def _attend_over_ranks(
        self, ranks: DCPGroup, phase: Phase, tokens: slice, batch: PagedBatch, q: torch.Tensor, heads: slice
    ) -> torch.Tensor:
        """Some of this rank's heads over all ranks' keys; what ranks have apart is merged before the sink."""
        result, lse = self._attend_rows(phase, tokens, batch, ranks.gather_queries(q), need_lse=True)
        result, lse = ranks.merge_states(self.bound.kernels.calls, result, require_lse(lse))
        return result if self.sink is None else self.bound.kernels.calls.apply_sink(result, lse, self.sink[heads])

    def _attend_rows(
        self,
        phase: Phase,
        tokens: slice,
        batch: PagedBatch,
        q: torch.Tensor,
        *,
        need_lse: bool = False,
        sink: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Absorbed queries over a batch's latent rows, or over those that were chosen."""
        calls, layer, cache = self.bound.kernels.phases[phase.name], self.bound.layer, self.place.cache
        if self.topk is None:
            return calls.paged_attention(
                q,
                cache,
                batch,
                softmax_scale=layer.softmax_scale,
                masking=self.masking,
                need_lse=need_lse,
                sink=sink,
            )
        rows, valid = self.topk.rows(layer, self.bound.kernels, *self.place, phase, self.parallel)
        return calls.sparse_mla(
            q,
            (Segment(cache, rows[tokens], valid[tokens]),),
            kv_lora_rank=self.mla.kv_lora_rank,
            softmax_scale=layer.softmax_scale,
            need_lse=need_lse,
            sink=sink,
        )

    def _attend_decompressed(self, phase: Phase, run: MLARun, inputs: LatentInputs, out: torch.Tensor, is_masked: bool) -> None:
        """Keys and values are made per head from the latents: the new tokens' from the inputs, earlier ones' from the cache."""
        weights = self.weights
        if weights is None:
            raise TypeError("a decompressed run needs the up-projections")
        piece = inputs.pick(run.tokens)
        selected = None
        if self.topk is not None and is_masked:
            selected = self.topk.ids(self.bound.layer, phase)[run.tokens]
        for heads in self._head_slices(weights, run):
            part = MLAWeights(w_uk=weights.w_uk[heads], w_uv=weights.w_uv[heads])
            out[run.tokens, heads] = self._attend_heads(phase, run, heads, part, piece, selected)

    def _head_slices(self, weights: MLAWeights, run: MLARun) -> list[slice]:
        """Runs of heads whose expanded keys and values fit in the workspace together; one head alone always does."""
        rows = max([run.tokens.stop - run.tokens.start, *(chunk.num_keys for chunk in run.context)])
        per_head = rows * (self.bound.layer.head_dim + self.bound.layer.v_head_dim) * weights.w_uk.dtype.itemsize
        step = max(1, MAX_EXPANDED_BYTES // per_head)
        count = weights.w_uk.shape[0]
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]

    def _attend_heads(
        self,
        phase: Phase,
        run: MLARun,
        heads: slice,
        weights: MLAWeights,
        inputs: LatentInputs,
        selected: torch.Tensor | None,
    ) -> torch.Tensor:
        q_nope, q_rope, latent, k_rope = inputs
        if latent is None or k_rope is None:
            raise TypeError("a decompressed run needs the step's latents")
        q = torch.cat([q_nope[:, heads], q_rope[:, heads]], dim=-1).to(weights.w_uk.dtype)
        attend = self.bound.kernels.phases["prefill"].varlen_attention
        scale = self.bound.layer.softmax_scale
        keys, values = _expand(latent, k_rope, weights)
        result, lse = attend(
            q,
            keys,
            values,
            VarlenBatch(
                q_start_loc=run.q_start_loc,
                k_start_loc=run.q_start_loc,
                max_query_len=run.max_query_len,
                max_seq_len=run.max_query_len,
                selected=selected,
                first_key=run.context_lens if selected is not None else None,
            ),
            softmax_scale=scale,
            need_lse=self.sink is not None or bool(run.context),
        )
        for chunk in run.context:
            rows = self._find_context(phase, run, chunk)
            latent, k_rope = self.bound.kernels.calls.gather_cache(self.place.cache, rows)
            keys, values = _expand(latent, k_rope, weights)
            tokens = chunk.tokens
            part, part_lse = attend(
                q[tokens],
                keys,
                values,
                VarlenBatch(
                    q_start_loc=chunk.q_start_loc,
                    k_start_loc=chunk.k_start_loc,
                    max_query_len=chunk.max_query_len,
                    max_seq_len=chunk.num_keys,
                    selected=None if selected is None else selected[tokens],
                    first_key=chunk.first_key if selected is not None else None,
                ),
                softmax_scale=scale,
                masking=_EVERYTHING,
                need_lse=True,
            )
            before = require_lse(lse)
            merged = self.bound.kernels.calls.merge_states(result[tokens], before[tokens], part, require_lse(part_lse))
            result[tokens], before[tokens] = merged
        if self.sink is not None:
            result = self.bound.kernels.calls.apply_sink(result, require_lse(lse), self.sink[heads])
        return result

    def _find_context(self, phase: Phase, run: MLARun, chunk: ContextChunk) -> torch.Tensor:
        """The cache rows of one of a run's chunks; found once for all layers of a group."""
        cache, group = self.place
        batch = phase.batches[group]
        key = ("context", run.requests.start, chunk.pieces, cache.page_stride)
        rows = None if batch.memo is None else batch.memo.get(key)
        if not isinstance(rows, torch.Tensor):
            rows = _context_rows(batch, run, chunk, cache)
            if batch.memo is not None:
                batch.memo[key] = rows
        return rows


def _context_rows(batch: PagedBatch, run: MLARun, chunk: ContextChunk, cache: KVCache) -> torch.Tensor:
    """The cache rows of a chunk's pieces, end to end, int32; no value leaves the device."""
    size = cache.block_size
    rows = []
    for piece in chunk.pieces:
        first_page = piece.start // size
        pages = batch.block_table[run.requests.start + piece.request, first_page : -(-piece.stop // size)]
        offsets = torch.arange(size, device=pages.device, dtype=torch.int32)
        flat = (pages[:, None] * cache.page_stride + offsets[None, :]).reshape(-1)
        rows.append(flat[piece.start - first_page * size : piece.stop - first_page * size])
    return torch.cat(rows)


def _expand(latent: torch.Tensor, k_rope: torch.Tensor, weights: MLAWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """K [keys, heads, nope + rope] and V [keys, heads, v] of latents [keys, lora], head-major in memory."""
    dtype = weights.w_uk.dtype
    heads, nope, _ = weights.w_uk.shape
    source = latent.to(dtype).expand(heads, *latent.shape)
    keys = source.new_empty(heads, latent.shape[0], nope + k_rope.shape[1])
    torch.bmm(source, weights.w_uk.transpose(1, 2), out=keys[..., :nope])
    keys[..., nope:] = k_rope.to(dtype)
    values = torch.bmm(source, weights.w_uv.transpose(1, 2))
    return keys.transpose(0, 1), values.transpose(0, 1)


def _project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [tokens, heads, in] through weight [heads, in, out], head by head: [tokens, heads, out]."""
    return torch.bmm(x.to(weight.dtype).transpose(0, 1), weight).transpose(0, 1)
