"""A step's metadata put together: views of the builder's arrays, and what the host worked out of the lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hal.common.contract.call_values import PagedBatch
from hal.common.contract.step import GroupStep, Phase, StepMetadata
from hal.common.planning.row_rules import RowRule

from .phase_work import Work
from .shards import ShardBounds
from .staging import Staging

if TYPE_CHECKING:
    import torch


# Sizes whose views are kept at once.
_MAX_SIZES = 2048


class Assembler:
    """Puts steps together of the arrays in a staging.

    given_tables: an engine's own block tables that stand in for the staging's during a step, None where they do not.
    """

    def __init__(self, staging: Staging, row_rules: Sequence[RowRule], num_groups: int, shards: ShardBounds | None) -> None:
        self.given_tables: tuple[torch.Tensor, ...] | None = None
        self._staging = staging
        self._row_rules = row_rules
        self._counts_in_rows = any(rule.tokens_per_row > 1 for rule in row_rules)
        self._num_groups = num_groups
        self._shards = shards
        self._views: dict[tuple[object, ...], tuple[torch.Tensor, ...]] = {}

    def assemble(
        self,
        owner: object,
        step_id: int,
        counts: tuple[int, int],
        padded: tuple[int, int],
        num_decodes: int,
        longest: tuple[int, int],
        is_ordered: bool,
        decode: Phase | None,
        prefill: Phase | None,
    ) -> StepMetadata:
        """The metadata of a step. counts, padded: its requests and tokens. longest: as for a phase, and so is is_ordered."""
        (num_reqs, num_tokens), (requests, tokens) = counts, padded
        starts, lens, positions, req_id, *slots = self._see_step(requests, tokens)
        leading = num_decodes if is_ordered else 0
        groups = [
            GroupStep(batch=PagedBatch(starts, lens, table, *longest, leading, {}), slot_mapping=slot_mapping)
            for table, slot_mapping in zip(self._tables("tables", 0, requests), slots, strict=True)
        ]
        return StepMetadata(
            owner=owner,
            step_id=step_id,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            num_tokens_padded=tokens,
            num_decodes=num_decodes,
            max_query_len=longest[0],
            max_seq_len=longest[1],
            query_start_loc=starts,
            seq_lens=lens,
            local_seq_lens=lens if self._shards is None else self._shards.seq_lens(requests),
            positions=positions,
            req_id_per_token=req_id,
            groups=tuple(groups),
            token_order=None if is_ordered else self._staging.see("token_order", 0, num_tokens),
            decode=decode,
            prefill=prefill,
        )

    def phase(
        self,
        name: str,
        requests: slice,
        tokens: slice,
        longest: tuple[int, int],
        is_ordered: bool,
        *,
        work: Work,
        may_hide_requests: bool,
    ) -> Phase:
        """A phase of a step. longest: its query and its request. is_ordered: the engine's order is the execution order."""
        first, last = requests.start, requests.stop
        starts, lens, req_id, key_bounds = self._see_phase(name, requests, tokens, is_ordered)
        num_decodes = last - first if name == "decode" else 0
        batches = [
            PagedBatch(starts, lens, table, *longest, num_decodes, {})
            for table in self._tables("tables" if is_ordered else "ordered_tables", first, last)
        ]
        if self._counts_in_rows:
            self._count_in_rows(batches, requests, tokens)
        shards, chunks = {}, work.chunks
        if self._shards is not None:
            shards = self._shards.share(requests, tokens, batches)
            chunks = {each: self._shards.narrow(parts) for each, parts in chunks.items()}
        return Phase(
            name=name,
            requests=requests,
            tokens=tokens,
            batches=tuple(batches),
            req_id=req_id,
            key_bounds=key_bounds,
            max_seq_len=longest[1],
            chunks=chunks,
            runs=work.runs,
            may_hide_requests=may_hide_requests,
            shards=shards,
        )

    def _see_step(self, requests: int, tokens: int) -> tuple[torch.Tensor, ...]:
        """starts, seq_lens, positions, req_id and every group's slots of a step of this size."""
        key = (requests, tokens)
        views = self._views.get(key)
        if views is None:
            see, groups = self._staging.see, range(self._num_groups)
            starts, lens = see("starts", 0, requests + 1), see("seq_lens", 0, requests)
            slots = [see("slots", 0, tokens, group) for group in groups]
            views = self._keep(key, (starts, lens, see("positions", 0, tokens), see("req_id", 0, tokens), *slots))
        return views

    def _see_phase(self, name: str, requests: slice, tokens: slice, is_ordered: bool) -> tuple[torch.Tensor, ...]:
        """starts, seq_lens, req_id and key_bounds of a phase of this size."""
        first, last, first_token, last_token = requests.start, requests.stop, tokens.start, tokens.stop
        key = (name, first, last, first_token, last_token, is_ordered)
        views = self._views.get(key)
        if views is None:
            see = self._staging.see
            starts = see(f"{name}_starts", 0, last - first + 1)
            lens = see("seq_lens" if is_ordered else "ordered_lens", first, last)
            req_id, key_bounds = (see(each, first_token, last_token) for each in ("phase_req_id", "key_bounds"))
            views = self._keep(key, (starts, lens, req_id, key_bounds))
        return views

    def _keep(self, key: tuple[object, ...], views: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The views, kept for steps of the same size: a running engine has few sizes, and seeks them on every step."""
        if len(self._views) >= _MAX_SIZES:
            self._views.clear()
        self._views[key] = views
        return views

    def _count_in_rows(self, batches: list[PagedBatch], requests: slice, tokens: slice) -> None:
        """Make the batches of groups in which tokens share rows count in rows."""
        see = self._staging.see
        for group, rule in enumerate(self._row_rules):
            if rule.tokens_per_row > 1:
                batches[group] = replace(
                    batches[group],
                    seq_lens=see("row_lens", requests.start, requests.stop, group),
                    max_seq_len=batches[group].max_seq_len // rule.tokens_per_row,
                    key_stops=see("row_bounds", tokens.start, tokens.stop, group),
                )

    def _tables(self, name: str, first: int, last: int) -> list[torch.Tensor]:
        """Rows of every group's block table, of the engine's own where those are read in place."""
        given = self.given_tables
        if given is None:
            return [self._staging.see(name, first, last, group) for group in range(self._num_groups)]
        rows = [table if last - first == table.shape[0] else table[first:last] for table in given]
        return rows if len(rows) == self._num_groups else rows * self._num_groups
