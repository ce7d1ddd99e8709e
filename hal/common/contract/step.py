"""What one step's metadata holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hal.config import LayerShape, MLAShape

from .call_values import IndexerChunk, PagedBatch
from .masking import Masking

if TYPE_CHECKING:
    import torch


MLAForm = Literal["absorbed", "decompressed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPiece:
    """Positions start..stop of one request's context."""

    request: int
    start: int
    stop: int


class Scoring(NamedTuple):
    """How an indexer scores: it keeps the topk best keys, each of which stands for tokens_per_key tokens."""

    topk: int
    tokens_per_key: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAKind:
    """What the form of an MLA layer depends on; layers that share it share their runs.

    is_plain: causal and nothing else; a window, chunk or softcap holds only in the absorbed form, over whole pages.
    """

    mla: MLAShape
    topk: int | None
    is_plain: bool = True


def mla_kind(layer: LayerShape) -> MLAKind | None:
    """The kind of a layer, None where it is not MLA."""
    if layer.mla is None:
        return None
    topk = layer.indexer.topk if layer.indexer is not None else None
    is_plain = layer.causal and layer.window is None and layer.chunk is None and layer.softcap is None
    return MLAKind(mla=layer.mla, topk=topk, is_plain=is_plain)


def scoring(layer: LayerShape) -> Scoring:
    """How a layer's indexer scores; layers that share it share their chunks."""
    indexer = layer.indexer
    return Scoring(0) if indexer is None else Scoring(indexer.topk // indexer.pool, layer.tokens_per_index_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextChunk:
    """Context gathered at once for a run: its pieces, the run's tokens that attend to it, where queries and keys start.

    requests and tokens count from the run's first. first_key: int32 [requests], the position of a request's first key here.
    """

    pieces: tuple[ContextPiece, ...]
    tokens: slice
    q_start_loc: torch.Tensor
    k_start_loc: torch.Tensor
    first_key: torch.Tensor
    max_query_len: int
    num_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MLARun:
    """Consecutive requests of a phase whose new tokens take the same form of MLA; slices count from the phase's first.

    context: what the decompressed form gathers of earlier steps; context_lens: int32 [requests].
    """

    form: MLAForm
    requests: slice
    tokens: slice
    q_start_loc: torch.Tensor
    context_lens: torch.Tensor
    max_query_len: int
    max_seq_len: int
    context: tuple[ContextChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The decodes or the prefills of a step, in execution order; slices count from the step's first.

    name: "decode" or "prefill". batches: one PagedBatch per cache group, which counts in rows where tokens share them.
    req_id: int32 [tokens], within the phase. key_bounds: int32 [tokens], how many tokens each token may see. chunks: what an
    indexer scores together. runs: by kind, for MLA layers. may_hide_requests: the batch came from the device unseen, so that
    requests which the runs are about may see no key. shards: over DCP ranks, the batches as this rank's pages answer them,
    by rule; there seq_lens are its share's.
    """

    name: str
    requests: slice
    tokens: slice
    batches: tuple[PagedBatch, ...]
    req_id: torch.Tensor
    key_bounds: torch.Tensor
    max_seq_len: int
    chunks: Mapping[Scoring, tuple[IndexerChunk, ...]]
    runs: Mapping[MLAKind, tuple[MLARun, ...]]
    shards: Mapping[Masking, tuple[PagedBatch, ...]]
    may_hide_requests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """One cache group's view of a step, in the engine's order: its paged batch and where the new tokens are written.

    batch counts in tokens. slot_mapping: int64 [tokens] row slots; where tokens share a row, -1 but for the last of them.
    """

    batch: PagedBatch
    slot_mapping: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetadata:
    """One step, ready for every layer. Tensors are the builder's persistent buffers: the next build() overwrites them.

    In the engine's order: query_start_loc int32 [requests + 1], seq_lens int32 [requests], positions int64 [tokens],
    req_id_per_token int32 [tokens], groups. In execution order, decodes first: decode and prefill. token_order: int64
    [tokens], the engine's index of each executed token, None where the orders agree. owner: the builder it came from.
    A request of a device batch that misses a page or whose length cannot be has a length of 0: it sees no key.
    Over DCP ranks all of this is about whole requests; local_seq_lens int32 [requests] is how much of each this rank stores.
    """

    owner: object
    step_id: int
    num_reqs: int
    num_tokens: int
    num_tokens_padded: int
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    local_seq_lens: torch.Tensor
    positions: torch.Tensor
    req_id_per_token: torch.Tensor
    groups: tuple[GroupStep, ...]
    token_order: torch.Tensor | None
    decode: Phase | None
    prefill: Phase | None

    @property
    def slot_mapping(self) -> torch.Tensor:
        """int64 [tokens]: where the first cache group writes each new token; -1, as where another rank does, writes nothing."""
        return self.groups[0].slot_mapping

    @property
    def block_table(self) -> torch.Tensor:
        """int32 [requests, pages] of the first cache group."""
        return self.groups[0].batch.block_table

    @property
    def num_prefills(self) -> int:
        """Requests that are no decodes; a request without a new token counts as a decode unless it is being prefilled."""
        return self.num_reqs - self.num_decodes

    @property
    def num_decode_tokens(self) -> int:
        """New tokens of the decodes."""
        return self.decode.tokens.stop if self.decode is not None else 0

    @property
    def num_prefill_tokens(self) -> int:
        """New tokens of the prefills."""
        return self.num_tokens - self.num_decode_tokens

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that have tokens, in execution order."""
        if self.decode is None:
            return () if self.prefill is None else (self.prefill,)
        return (self.decode,) if self.prefill is None else (self.decode, self.prefill)
