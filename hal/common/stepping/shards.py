"""Which of its own keys a DCP rank shows to each query: global ranges of positions, localised token by token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from hal.common.contract.call_values import IndexerChunk, PagedBatch
from hal.common.contract.masking import Masking, list_sights
from hal.common.contract.parallel import local_length, longest_share

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan
    from hal.common.contract.step import Phase, StepMetadata


def global_range(rule: Masking, bounds: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First position and end of what queries see: bounds are their own positions plus one, lengths their requests'.

    A bound of 0 belongs to no request and sees nothing.
    """
    positions = bounds - 1
    start, stop = torch.zeros_like(bounds), bounds if rule.causal else lengths
    if rule.window is not None:
        start = positions - (rule.window - 1)
        stop = torch.minimum(stop, positions + rule.window)
    if rule.chunk is not None:
        first = positions // rule.chunk * rule.chunk
        start, stop = torch.maximum(start, first), torch.minimum(stop, first + rule.chunk)
    stop = torch.where(bounds > 0, stop, 0)
    return torch.minimum(start.clamp(min=0), stop), stop


class ShardBounds:
    """The ranges of this rank's keys for every token of a step, in persistent buffers, per rule that a layer of the plan has.

    A run of positions is a run of this rank's indices too, so both ends are localised, after they were worked out per token:
    localising a length and counting tokens back from there would be wrong.
    """

    def __init__(self, plan: Plan, torch_device: str) -> None:
        limits = plan.limits
        self._parallel = plan.parallel
        self._rules = list_sights(plan.shape.layers)
        ranges = (len(self._rules), limits.max_num_batched_tokens)
        self._starts = torch.zeros(ranges, dtype=torch.int32, device=torch_device)
        self._stops = torch.zeros_like(self._starts)
        self._seq_lens = torch.zeros(limits.max_num_seqs, dtype=torch.int32, device=torch_device)
        self._ordered_lens = torch.zeros_like(self._seq_lens)

    def seq_lens(self, num_reqs: int) -> torch.Tensor:
        """int32 [requests]: how many tokens of each this rank stores, in the engine's order."""
        return self._seq_lens[:num_reqs]

    def share(self, requests: slice, tokens: slice, batches: Iterable[PagedBatch]) -> dict[Masking, tuple[PagedBatch, ...]]:
        """A phase's batches as this rank's shard answers them, by rule, one per cache group; fill() gives them values."""
        lengths, given = self._ordered_lens[requests], tuple(batches)
        longest = longest_share(given[0].max_seq_len, self._parallel) if given else 0
        shards = {}
        for index, rule in enumerate(self._rules):
            starts, stops = self._starts[index, tokens], self._stops[index, tokens]
            shards[rule] = tuple(
                replace(each, seq_lens=lengths, max_seq_len=longest, memo={}, key_starts=starts, key_stops=stops)
                for each in given
            )
        return shards

    def narrow(self, chunks: Iterable[IndexerChunk]) -> tuple[IndexerChunk, ...]:
        """Chunks of as many tokens whose scores are as wide as a rank's share can be, the same on every rank."""
        return tuple(replace(chunk, max_seq_len=longest_share(chunk.max_seq_len, self._parallel)) for chunk in chunks)

    def fill(self, metadata: StepMetadata) -> None:
        """Work out a step's ranges on the device, from what its other arrays hold by now; tails are empty."""
        padded = metadata.seq_lens.shape[0]
        self._seq_lens[:padded] = local_length(metadata.seq_lens, self._parallel)
        for phase in metadata.phases:
            self._fill_phase(phase)
        self._ordered_lens[metadata.num_reqs : padded] = 0
        self._starts[:, metadata.num_tokens :] = 0
        self._stops[:, metadata.num_tokens :] = 0

    def _fill_phase(self, phase: Phase) -> None:
        lengths = phase.batches[0].seq_lens
        if not lengths.shape[0]:
            # Padded tokens alone, which belong to no request.
            self._starts[:, phase.tokens] = 0
            self._stops[:, phase.tokens] = 0
            return
        self._ordered_lens[phase.requests] = local_length(lengths, self._parallel)
        per_token = lengths[phase.req_id.long()]
        for index, rule in enumerate(self._rules):
            start, stop = global_range(rule, phase.key_bounds, per_token)
            self._starts[index, phase.tokens] = local_length(start, self._parallel)
            self._stops[index, phase.tokens] = local_length(stop, self._parallel)
