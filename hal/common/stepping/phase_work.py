"""What a phase's indexers score together, and the runs of its MLA layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hal.common.contract.call_values import IndexerChunk
from hal.common.contract.step import MLAKind, MLARun, Scoring, scoring
from hal.common.planning.buffers import context_rows
from hal.common.planning.step_arrays import decompressed_kinds

from .chunks import plan_scores, spread_scores
from .runs import plan_runs
from .staging import Staging

if TYPE_CHECKING:
    import torch

    from hal.common.contract.plan import Plan


class Work(NamedTuple):
    """A phase's work, by the kinds of layers that share it."""

    chunks: Mapping[Scoring, tuple[IndexerChunk, ...]]
    runs: Mapping[MLAKind, tuple[MLARun, ...]]


class WorkPlanner:
    """Cuts the work of phases as a model's layers need it; what runs say in numbers is placed in the step's arrays.

    can_mask: the varlen kernel takes an explicit choice of keys, so that a pruned prefill may be decompressed.
    """

    def __init__(self, plan: Plan, staging: Staging, can_mask: bool) -> None:
        self._plan = plan
        self._staging = staging
        self._can_mask = can_mask
        self._kinds = decompressed_kinds(plan.shape, plan.parallel)
        self._scorings = tuple(sorted({scoring(layer) for layer in plan.shape.layers if layer.indexer is not None}))
        self._max_scores = plan.limits.max_logits_bytes // 4
        self._cursor = 0

    @property
    def needs_lengths(self) -> bool:
        """Whether any layer's work depends on a step's lengths."""
        return bool(self._scorings or self._kinds)

    def restart(self) -> None:
        """Begin a step: its runs' numbers take the place of the step's before."""
        self._cursor = 0

    def cut(self, name: str, query_lens: Sequence[int], seq_lens: Sequence[int], at_least: int = 0) -> Work:
        """The work of a phase whose lengths the host knows. at_least: scores have room for requests of this length."""
        longest, most = [max(at_least, length) for length in seq_lens] if at_least else seq_lens, self._max_scores
        chunks = {each: plan_scores(query_lens, longest, each.topk, most, each.tokens_per_key) for each in self._scorings}
        if name == "decode":
            return Work(chunks, {})
        return Work(chunks, {kind: self._plan_runs(kind, query_lens, seq_lens) for kind in self._kinds})

    def spread(self, num_reqs: int, num_tokens: int, max_seq_len: int) -> Work:
        """The work where every token may see max_seq_len keys; MLA stays absorbed, which needs no lengths."""
        most = self._max_scores
        return Work({each: spread_scores(num_reqs, num_tokens, max_seq_len, each, most) for each in self._scorings}, {})

    def _plan_runs(self, kind: MLAKind, query_lens: Sequence[int], seq_lens: Sequence[int]) -> tuple[MLARun, ...]:
        plan = self._plan
        return plan_runs(
            kind,
            query_lens,
            seq_lens,
            can_mask=self._can_mask,
            max_rows=context_rows(plan.limits, plan.block_size, plan.parallel, kind.topk),
            alignment=plan.block_size,
            place=self._place,
        )

    def _place(self, numbers: Sequence[int]) -> torch.Tensor:
        span = slice(self._cursor, self._cursor + len(numbers))
        self._staging.host["runs"][span] = numbers
        self._cursor = span.stop
        return self._staging.device["runs"][span]
