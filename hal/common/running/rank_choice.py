"""The best keys of all DCP ranks, from what each scored of its own."""

from __future__ import annotations

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch
from hal.common.contract.exchanges import tokens_at_once
from hal.common.contract.parallel import Parallel, global_position

from .ranks import DCPGroup

ScoreInputs = tuple[torch.Tensor, torch.Tensor, KVCache, PagedBatch, IndexerChunk]

_NO_ID = 2**31 - 1


def choose_over_ranks(
    calls: Backend, inputs: ScoreInputs, k: int, width: int, ranks: DCPGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 [chunk tokens, width]: the k best positions of all ranks' keys by value, then by lower position.

    Beside them bool [chunk tokens], where any rank's scores hold NaN. Both are the same on every rank. inputs: what
    index_scores takes, its batch being this rank's share. A key that is among the best of all is among its own rank's best,
    so k candidates of each suffice: (dcp - 1) * tokens * (k * (4 + size of a score) + 4) bytes come in.
    """
    batch, chunk = inputs[3], inputs[4]
    scores = calls.index_scores(*inputs)
    lengths = batch.seq_lens if batch.key_stops is None else batch.key_stops
    lengths = lengths[chunk.token_start : chunk.token_stop]
    count = min(k, scores.shape[1])
    values, ids = find_candidates(calls, scores, lengths, count, width, ranks.parallel)
    has_nan = scores.amax(dim=1).isnan()
    # All of a token as bits of one type, so that a collective serves.
    told = torch.cat([values.view(torch.int32), ids, has_nan[:, None].int()], dim=1)
    pieces = told.split(tokens_at_once(told.shape[0], ranks.parallel.dcp, count))
    merged = [_merge(calls, ranks.gather(piece).movedim(0, 1), values.dtype, k, width) for piece in pieces]
    return merged[0] if len(merged) == 1 else (torch.cat([each[0] for each in merged]), torch.cat([each[1] for each in merged]))


def _merge(calls: Backend, packed: torch.Tensor, dtype: torch.dtype, k: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best of all ranks' candidates and whether any saw NaN, from int32 [tokens, ranks, values and ids and a flag]."""
    lanes = dtype.itemsize // 4
    count = (packed.shape[2] - 1) // (lanes + 1)
    values = packed[..., : lanes * count].contiguous().view(dtype).flatten(1)
    chosen = merge_candidates(calls, values, packed[..., lanes * count : -1].flatten(1), k, width)
    return chosen, packed[..., -1].any(dim=1)


def merge_candidates(calls: Backend, values: torch.Tensor, ids: torch.Tensor, k: int, width: int) -> torch.Tensor:
    """int32 [tokens, width]: the ids int32 [tokens, candidates] of the k best values; an id of 2**31 - 1 is none.

    In order of their ids, equal values go to the lower column where they go to the lower id.
    """
    ids, order = ids.sort(dim=1)
    counts = (ids < _NO_ID).sum(1, dtype=torch.int32)
    columns = calls.select_topk(values.gather(1, order), counts, k, width, deterministic=True)
    chosen = ids.gather(1, columns.clamp(min=0).long()) if ids.shape[1] else columns
    return torch.where(columns >= 0, chosen, columns)


def find_candidates(
    calls: Backend, scores: torch.Tensor, lengths: torch.Tensor, count: int, width: int, parallel: Parallel
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values and positions [tokens, count] of this rank's best keys, without NaN; 2**31 - 1 where there is none."""
    best = calls.select_topk(scores, lengths, count, width, deterministic=True)[:, :count]
    values = scores.gather(1, best.clamp(min=0).long())
    is_none = best < 0
    values = values.masked_fill(is_none | values.isnan(), float("-inf"))
    return values, global_position(best, parallel).masked_fill(is_none, _NO_ID)
