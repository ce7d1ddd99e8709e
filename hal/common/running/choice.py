"""Which keys the latest indexer chose, and their cache rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hal.common.contract.call_values import IndexInputs, KVCache
from hal.common.contract.choice_kind import ChoiceKind, choice_kind, list_kinds
from hal.common.contract.errors import BatchError
from hal.common.contract.masking import CAUSAL
from hal.common.contract.parallel import Parallel
from hal.common.contract.repeats import forget_repeats
from hal.common.contract.step import Phase, StepMetadata, scoring
from hal.common.stepping.findings import Finding
from hal.config import LayerShape

from .layer_kernels import LayerKernels
from .rank_choice import choose_over_ranks
from .ranks import DCPGroup
from .scoring import score_chunk

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan


class TopkState:
    """A buffer int32 [max tokens, width] per kind, in execution order, written by an owner and read by the layers that share.

    No id occurs twice in a row. nan_scores: tokens with a NaN among their scores. lost_choices: handed-over ids past what their
    token may see.

    Cache rows are converted once per choice and page geometry, since layers of one cache group share their block table.
    """

    def __init__(self, plan: Plan, torch_device: str, ranks: DCPGroup | None = None) -> None:
        self._ranks = ranks
        tokens = plan.limits.max_num_batched_tokens
        self._buffers = {
            kind: torch.full((tokens, kind.width), -1, dtype=torch.int32, device=torch_device)
            for kind in list_kinds(plan.shape.layers)
        }
        self.nan_scores, self.lost_choices = Finding(torch_device), Finding(torch_device)
        self._steps: dict[ChoiceKind, int] = {}
        self._explicit: set[ChoiceKind] = set()
        self._rows: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def choose(
        self, layer: LayerShape, kernels: LayerKernels, cache: KVCache, group: int, index: IndexInputs, metadata: StepMetadata
    ) -> None:
        """Score the step's queries and keep the best keys of each."""
        indexer, each = _indexer(layer), scoring(layer)
        buffer = self._renew(layer, metadata, is_explicit=False)
        is_pooled = indexer.pool > 1
        # Pools are chosen first and their tokens written after; what is chosen otherwise goes straight to the buffer.
        picked = buffer.new_empty((buffer.shape[0], each.topk)) if is_pooled else buffer
        order = metadata.token_order
        queries = index.q if order is None else index.q.index_select(0, order)
        weights = (index.weights if order is None else index.weights.index_select(0, order)).float()
        for phase in metadata.phases:
            chosen, batch = picked[phase.tokens], phase.batches[group]
            bounds = phase.key_bounds if batch.key_stops is None else batch.key_stops
            chunks = phase.chunks[each]
            if sum(chunk.token_stop - chunk.token_start for chunk in chunks) < chosen.shape[0]:
                # A query that sees no more than topk keys selects them all; only the others are scored.
                _select_all(chosen, bounds.clamp(max=each.topk))
            for chunk in chunks:
                tokens, span = phase.tokens, slice(chunk.token_start, chunk.token_stop)
                if self._ranks is not None:
                    shard = phase.shards[CAUSAL][group]
                    inputs = (queries[tokens], weights[tokens], cache, shard, chunk)
                    chosen[span], has_nan = choose_over_ranks(kernels.calls, inputs, each.topk, picked.shape[1], self._ranks)
                else:
                    scores = score_chunk(kernels, queries[tokens], weights[tokens], cache, batch, phase.req_id, chunk)
                    chosen[span] = kernels.calls.select_topk(scores, bounds[span], each.topk, picked.shape[1], deterministic=True)
                    # The largest of some values is NaN where one of them is.
                    has_nan = scores.amax(dim=1).isnan()
                self._count_nan(layer, metadata, tokens.start + chunk.token_start, has_nan)
            if is_pooled:
                buffer[phase.tokens] = kernels.calls.expand_pools(
                    chosen, phase.key_bounds, indexer.pool, indexer.width, distinct=True
                )

    def take(self, layer: LayerShape, topk: torch.Tensor, metadata: StepMetadata) -> None:
        """Use a choice made elsewhere: topk int32 [tokens, width] in the engine's order.

        Keys after a query are none of its, and an id that occurs twice in a row counts once.
        """
        buffer = self._renew(layer, metadata, is_explicit=True)
        order = metadata.token_order
        chosen = topk[: metadata.num_tokens] if order is None else topk.index_select(0, order)
        for phase in metadata.phases:
            ids = chosen[phase.tokens]
            is_foreign = ids >= phase.key_bounds[:, None]
            self._count_foreign(layer, metadata, phase, ids, is_foreign)
            buffer[phase.tokens] = forget_repeats(torch.where(is_foreign, ids.new_full((), -1), ids))

    def is_explicit(self, layer: LayerShape) -> bool:
        """Whether the layer's choice was handed over, so that it may leave out keys of a request shorter than topk."""
        return _kind(layer) in self._explicit

    def check(self, layer: LayerShape, metadata: StepMetadata) -> None:
        """Raise BatchError where no layer has chosen in this step yet."""
        if self._steps.get(_kind(layer)) != metadata.step_id:
            raise BatchError(f"layer {layer.layer_id} shares an indexer and no layer before it has chosen keys in this step")

    def ids(self, layer: LayerShape, phase: Phase) -> torch.Tensor:
        """The choice of a phase's tokens, int32 [tokens, width]."""
        return self._buffers[_kind(layer)][phase.tokens]

    def rows(
        self, layer: LayerShape, kernels: LayerKernels, cache: KVCache, group: int, phase: Phase, parallel: Parallel
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The chosen rows of a phase's tokens in a cache group: rows int32 [tokens, width], valid int32 [tokens]."""
        key = (_kind(layer), phase.tokens.start, group, cache.page_stride)
        if key not in self._rows:
            batch = phase.batches[group]
            self._rows[key] = kernels.calls.rows_from_topk(
                self.ids(layer, phase),
                phase.req_id,
                batch.block_table,
                batch.seq_lens,
                block_size=cache.block_size,
                rows_per_page=cache.page_stride,
                parallel=parallel,
                distinct=True,
            )
        return self._rows[key]

    def _count_nan(self, layer: LayerShape, metadata: StepMetadata, first_token: int, has_nan: torch.Tensor) -> None:
        def describe(index: tuple[int, ...]) -> str:
            token = _engine_token(metadata, first_token + index[0])
            return f"layer {layer.layer_id}: the index scores of token {token} hold NaN; look at its index queries and weights"

        self.nan_scores.add(has_nan, describe)

    def _count_foreign(
        self, layer: LayerShape, metadata: StepMetadata, phase: Phase, ids: torch.Tensor, is_foreign: torch.Tensor
    ) -> None:
        def describe(index: tuple[int, ...]) -> str:
            token = _engine_token(metadata, phase.tokens.start + index[0])
            bound = int(phase.key_bounds[index[0]])
            return f"layer {layer.layer_id}: token {token} is to attend to key {int(ids[index])}; it sees keys 0 to {bound - 1}"

        self.lost_choices.add(is_foreign, describe)

    def _renew(self, layer: LayerShape, metadata: StepMetadata, *, is_explicit: bool) -> torch.Tensor:
        kind = _kind(layer)
        self._steps[kind] = metadata.step_id
        (self._explicit.add if is_explicit else self._explicit.discard)(kind)
        self._rows = {key: rows for key, rows in self._rows.items() if key[0] != kind}
        return self._buffers[kind]


def _select_all(chosen: torch.Tensor, counts: torch.Tensor) -> None:
    """Choose the first keys of each token, counts int32 [tokens] of them."""
    columns = torch.arange(chosen.shape[1], dtype=torch.int32, device=chosen.device)[None, :]
    torch.where(columns < counts[:, None], columns, columns.new_full((), -1), out=chosen)


def _engine_token(metadata: StepMetadata, token: int) -> int:
    """The engine's index of an executed token."""
    return token if metadata.token_order is None else int(metadata.token_order[token])


def _kind(layer: LayerShape) -> ChoiceKind:
    kind = choice_kind(layer)
    if kind is None:
        raise BatchError(f"layer {layer.layer_id} has no indexer")
    return kind


def _indexer(layer: LayerShape) -> Any:
    if layer.indexer is None:
        raise BatchError(f"layer {layer.layer_id} has no indexer")
    return layer.indexer
