"""Rows of the last positions before each token of a step, found once for the layers of a cache group."""

from __future__ import annotations

from typing import Any

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.parallel import Parallel
from hal.common.contract.step import Phase, StepMetadata

from .places import Place

Rows = tuple[torch.Tensor, torch.Tensor]


class CompressedRows:
    """Rows of a step's windows, and of all entries where no indexer picks."""

    def __init__(self, parallel: Parallel) -> None:
        self._parallel = parallel
        self._step_id = -1
        self._rows: dict[tuple[Any, ...], Rows] = {}

    def of_step(self, metadata: StepMetadata) -> CompressedRows:
        """Itself, with nothing left of another step."""
        if self._step_id != metadata.step_id:
            self._step_id, self._rows = metadata.step_id, {}
        return self

    def find_last(self, calls: Backend, place: Place, phase: Phase, stops: torch.Tensor, count: int) -> Rows:
        """Rows int32 [tokens, count] of the last `count` positions before each token's stop, and how many lead the list."""
        cache, group = place
        key = (phase.tokens.start, group, cache.page_stride, count)
        if key not in self._rows:
            columns = torch.arange(count, dtype=torch.int32, device=stops.device)[None, :]
            ids = (stops - count).clamp(min=0)[:, None] + columns
            batch = phase.batches[group]
            self._rows[key] = calls.rows_from_topk(
                torch.where(ids < stops[:, None], ids, ids.new_full((), -1)),
                phase.req_id,
                batch.block_table,
                batch.seq_lens,
                block_size=cache.block_size,
                rows_per_page=cache.page_stride,
                parallel=self._parallel,
                distinct=True,
            )
        return self._rows[key]
