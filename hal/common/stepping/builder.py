"""The metadata builder: one class, for every platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import numpy as np
import torch

from hal.common.contract.batch import Batch
from hal.common.contract.call_values import IndexerChunk
from hal.common.contract.device_batch import DeviceBatch
from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BatchError, InputError
from hal.common.contract.step import MLAKind, MLARun, Phase, Scoring, StepMetadata, scoring
from hal.common.planning.buffers import context_rows
from hal.common.planning.row_rules import RowRule, row_rules
from hal.common.planning.step_arrays import ALIGNMENT, decompressed_kinds, list_regions

from .assemble import Assembler
from .block_ids import make_rules
from .checks import check_batch, check_counts, check_device_batch, check_writes
from .chunks import plan_scores, spread_scores
from .device_findings import find_mistake, find_wrong_hint, hide_requests
from .fill import fill_from_host
from .fill_device import fill_from_device
from .fill_rows import fill_rows
from .host_step import HostStep, arrange, see_device_batch
from .pages import PagePool
from .placement import Placement, place_tokens
from .runs import plan_runs
from .shards import ShardBounds
from .shared_pages import SharedPages
from .staging import Staging
from .writes import find_repeated_pages, find_wrong_write

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan


class MetadataBuilder:
    """Turns batches into StepMetadata in persistent buffers; everything it knows of the model comes from the plan.

    pools: one for each cache group. can_mask: the varlen kernel takes an explicit choice of keys, so that a pruned prefill may
    be decompressed.
    """

    def __init__(self, plan: Plan, pools: tuple[PagePool, ...], torch_device: str, can_mask: bool = False) -> None:
        self.plan = plan
        self.rules = make_rules(plan, pools)
        self.step_id = 0
        self._can_mask = can_mask
        self._shards = ShardBounds(plan, torch_device) if plan.parallel.dcp > 1 else None
        self._kinds = decompressed_kinds(plan.shape, plan.parallel)
        self._scorings = tuple(sorted({scoring(layer) for layer in plan.shape.layers if layer.indexer is not None}))
        self._max_scores = plan.limits.max_logits_bytes // 4
        self._num_groups = max(1, len(plan.groups))
        self._row_rules = row_rules(plan.groups)
        self._has_row_rules = any(rule != RowRule() for rule in self._row_rules)
        self._cursor = 0
        regions = list_regions(plan.shape, plan.limits, plan.parallel, plan.block_size, plan.groups)
        self._staging = Staging(regions, torch_device)
        self._assembler = Assembler(self._staging, self._row_rules, self._num_groups, self._shards)
        self._device_type = torch.device(torch_device).type
        self._is_on_host = self._device_type == "cpu"
        # A table that is read in place is left as it is: no page before its live columns can be made -1 there.
        self._reads_in_place = self._is_on_host and not any(rule.reach for rule in self.rules.groups)
        self._shared_pages = SharedPages(torch_device)
        self._lost_tokens = torch.zeros((), dtype=torch.int64, device=torch_device)
        self._lost_pages = torch.zeros((), dtype=torch.int64, device=torch_device)

    @property
    def topk_tokens(self) -> int | None:
        """The keys that the model's indexers keep for a token, None where it has none."""
        return self.plan.shape.index_topk

    @property
    def lost_tokens(self) -> int:
        """Tokens of device batches, so far, that could be written nowhere; reading it waits for the device."""
        return int(self._lost_tokens)

    @property
    def lost_pages(self) -> int:
        """Ids in live columns of device tables, so far, that were none of the pool's; reading it waits for the device.

        The step's metadata has no key for a request with such an id, so that no kernel has to know of it.
        """
        return int(self._lost_pages)

    @final
    def build(self, batch: Batch | DeviceBatch) -> StepMetadata:
        """The metadata of a step; BatchError, with nothing written, for a batch that the plan or the caches do not allow."""
        self._cursor, self._assembler.given_tables = 0, None
        if isinstance(batch, DeviceBatch):
            return self._build_from_device(batch)
        if not isinstance(batch, Batch):
            raise BatchError(f"a step is built of a Batch or of Batch.from_device's answer, not of a {type(batch).__name__}")
        return self._build_from_host(batch)

    def build_for_capture(self, num_reqs: int, num_tokens: int) -> StepMetadata:
        """The metadata of a made-up step of this size, lengths spread evenly, for capturing a graph or warming up."""
        for name, count in (("num_reqs", num_reqs), ("num_tokens", num_tokens)):
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
                raise InputError(f"{name} is {count!r}; expected a whole number")
        if num_reqs < 1 or num_tokens < num_reqs:
            raise InputError(f"cannot spread {num_tokens} tokens over {num_reqs} requests; each needs at least one")
        check_counts(num_reqs, num_tokens, self.plan.limits)
        query_lens = np.full(num_reqs, num_tokens // num_reqs)
        query_lens[: num_tokens % num_reqs] += 1
        pages = -(-int(query_lens.max()) // self.plan.tokens_per_page)
        tables = [np.zeros((num_reqs, pages), np.int32)] * (1 if self.rules.shared is not None else self._num_groups)
        made_up = Batch(query_lens, query_lens, tables)
        self._cursor, self._assembler.given_tables = 0, None
        # A captured graph is replayed with longer requests: what is chosen by the longest must hold for any.
        metadata = self._build_from_host(made_up, self.plan.limits.max_model_len, is_written=False)
        # Its pages belong to running requests: the made-up tokens must not be written to them.
        self._staging.host["slots"][:, :num_tokens] = -1
        self._staging.upload()
        return metadata

    def _build_from_host(self, batch: Batch, at_least: int = 0, *, is_written: bool = True) -> StepMetadata:
        plan = self.plan
        step = arrange(batch, 1 + plan.num_spec_tokens)
        check_batch(batch, step.max_seq_len, plan.limits, self.rules)
        placement = place_tokens(step, plan.block_size, plan.parallel)
        if is_written:
            check_writes(step, placement, self.rules)
        self.step_id += 1
        self._staging.turn()
        fill_from_host(step, placement, self._staging.host, self.rules, plan.parallel)
        padded = (step.padded_reqs, step.padded_tokens)
        if self._has_row_rules:
            fill_rows(self._row_rules, self._staging.host, plan.block_size, step.order is None, *padded)
        num_reqs, num_tokens, first = step.num_reqs, step.num_tokens, step.num_decodes
        is_ordered = step.order is None
        first_prefill = step.count_decode_tokens()
        decode = self._host_phase("decode", step, slice(0, first), slice(0, first_prefill), at_least)
        prefill = self._host_phase("prefill", step, slice(first, num_reqs), slice(first_prefill, num_tokens), at_least)
        longest_query = max([each.batches[0].max_query_len for each in (decode, prefill) if each is not None], default=0)
        longest = (longest_query, max(at_least, step.max_seq_len))
        metadata = self._assembler.assemble(
            self, self.step_id, (num_reqs, num_tokens), padded, first, longest, is_ordered, decode, prefill
        )
        self._staging.upload()
        if self._shards is not None:
            self._shards.fill(metadata)
        return metadata

    def _build_from_device(self, batch: DeviceBatch) -> StepMetadata:
        plan = self.plan
        check_device_batch(batch, plan.limits, self.rules, self._device_type)
        decode_len, num_reqs, num_tokens = 1 + plan.num_spec_tokens, batch.num_reqs, batch.num_tokens
        first = batch.count_decodes(decode_len)
        decode_tokens = batch.count_decode_tokens(first, decode_len)
        seen = self._see_if_sound(batch, first, decode_tokens)
        if seen is not None and self._can_read_in_place(batch):
            self._assembler.given_tables = batch.block_tables
        self.step_id += 1
        self._staging.turn()
        is_sound = seen is not None
        decode = self._device_phase("decode", batch, slice(0, first), slice(0, decode_tokens), is_sound)
        prefill = self._device_phase("prefill", batch, slice(first, num_reqs), slice(decode_tokens, num_tokens), is_sound)
        counts = (num_reqs, num_tokens)
        longest = (batch.max_query_len, batch.max_seq_len)
        metadata = self._assembler.assemble(self, self.step_id, counts, counts, first, longest, True, decode, prefill)
        if seen is not None and self._is_on_host:
            has_tables = self._assembler.given_tables is not None
            fill_from_host(*seen, self._staging.host, self.rules, plan.parallel, has_tables=has_tables)
            if self._has_row_rules:
                fill_rows(self._row_rules, self._staging.host, plan.block_size, True, *counts)
        else:
            self._staging.host["num_counted"][0] = 0
            self._staging.upload()
            # After the upload, which would overwrite what is computed on the device.
            shared = [self._shared_pages.see(rule.pool) for rule in self.rules.groups]
            lost = fill_from_device(
                batch, self._staging.device, plan.block_size, self.rules, first, decode_tokens, plan.parallel, shared
            )
            fill_rows(self._row_rules, self._staging.device, plan.block_size, True, *counts)
            self._lost_tokens += lost.tokens
            self._lost_pages += lost.pages.sum()
            # A group that keeps fewer rows than tokens has found its slots by the whole lengths before.
            hide_requests(self._staging.device, lost.pages > 0, num_tokens)
        if self._shards is not None:
            self._shards.fill(metadata)
        return metadata

    def _see_if_sound(self, batch: DeviceBatch, num_decodes: int, decode_tokens: int) -> tuple[HostStep, Placement] | None:
        """The batch as the host sees it, where it does and nothing is wrong; BatchError under HAL_DEBUG=1 where something is."""
        is_debugged = read_variable("HAL_DEBUG") == "1"
        if not is_debugged and not self._is_on_host:
            return None
        step = see_device_batch(batch, num_decodes)
        mistake = find_mistake(batch, step, self.rules, decode_tokens)
        if is_debugged:
            mistake = mistake or find_wrong_hint(batch, step)
        placement = None
        if mistake is None:
            placement = place_tokens(step, self.plan.block_size, self.plan.parallel)
            mistake = find_wrong_write(step, placement, self.rules)
        if is_debugged:
            mistake = mistake or find_repeated_pages(step.block_tables, step.query_lens, step.seq_lens, self.rules)
            if mistake is not None:
                raise BatchError(mistake)
        return None if placement is None or mistake is not None else (step, placement)

    def _can_read_in_place(self, batch: DeviceBatch) -> bool:
        """Whether the batch's tables can stand in for the builder's own: on the CPU, where copying them would be most of a step.

        They must be laid out alike, since compiled launches tell layouts apart, and have no page to leave out.
        """
        if not self._reads_in_place:
            return False
        width = self.plan.block_table_width
        for table in batch.block_tables:
            if table.shape[1] != width or table.data_ptr() % ALIGNMENT or not table.is_contiguous():
                return False
        return True

    def _context_rows(self, kind: MLAKind) -> int:
        return context_rows(self.plan.limits, self.plan.block_size, self.plan.parallel, kind.topk)

    def _place(self, numbers: Sequence[int]) -> torch.Tensor:
        span = slice(self._cursor, self._cursor + len(numbers))
        self._staging.host["runs"][span] = numbers
        self._cursor = span.stop
        return self._staging.device["runs"][span]

    def _host_phase(self, name: str, step: HostStep, requests: slice, tokens: slice, at_least: int) -> Phase | None:
        if tokens.start == tokens.stop:
            return None
        queries, lengths = step.query_lens, step.seq_lens
        if step.order is not None:
            queries, lengths = queries[step.order], lengths[step.order]
        queries, lengths = queries[requests], lengths[requests]
        longest_query = 1 if step.is_single else int(np.maximum.reduce(queries))
        longest = max(at_least, step.max_seq_len if len(lengths) == step.num_reqs else int(np.maximum.reduce(lengths)))
        chunks: Mapping[Scoring, tuple[IndexerChunk, ...]] = {}
        runs: Mapping[MLAKind, tuple[MLARun, ...]] = {}
        if self._scorings or self._kinds:
            query_lens, seq_lens = queries.tolist(), lengths.tolist()
            chunks = self._score_chunks(query_lens, [max(at_least, length) for length in seq_lens] if at_least else seq_lens)
            runs = self._phase_runs(name, query_lens, seq_lens)
        return self._assembler.phase(
            name,
            requests,
            tokens,
            (longest_query, longest),
            step.order is None,
            chunks=chunks,
            runs=runs,
            may_hide_requests=False,
        )

    def _device_phase(self, name: str, batch: DeviceBatch, requests: slice, tokens: slice, is_sound: bool) -> Phase | None:
        if tokens.start == tokens.stop:
            return None
        chunks: Mapping[Scoring, tuple[IndexerChunk, ...]]
        if batch.query_lens is None or batch.seq_lens_upper is None:
            # Without host lengths every token may see max_seq_len keys, and MLA stays absorbed, which needs none.
            chunks, runs = self._even_chunks(batch.max_seq_len, requests, tokens), {}
        else:
            queries, lengths = batch.query_lens[requests], batch.seq_lens_upper[requests]
            chunks, runs = self._score_chunks(queries, lengths), self._phase_runs(name, queries, lengths)
        longest = (batch.max_query_len, batch.max_seq_len)
        return self._assembler.phase(
            name, requests, tokens, longest, True, chunks=chunks, runs=runs, may_hide_requests=not is_sound
        )

    def _score_chunks(self, query_lens: Sequence[int], seq_lens: Sequence[int]) -> dict[Scoring, tuple[IndexerChunk, ...]]:
        most = self._max_scores
        return {each: plan_scores(query_lens, seq_lens, each.topk, most, each.tokens_per_key) for each in self._scorings}

    def _even_chunks(self, max_seq_len: int, requests: slice, tokens: slice) -> dict[Scoring, tuple[IndexerChunk, ...]]:
        counts = (requests.stop - requests.start, tokens.stop - tokens.start)
        return {each: spread_scores(*counts, max_seq_len, each, self._max_scores) for each in self._scorings}

    def _phase_runs(self, name: str, query_lens: Sequence[int], seq_lens: Sequence[int]) -> dict[MLAKind, tuple[MLARun, ...]]:
        return {} if name == "decode" else {kind: self._runs(kind, query_lens, seq_lens) for kind in self._kinds}

    def _runs(self, kind: MLAKind, query_lens: Sequence[int], seq_lens: Sequence[int]) -> tuple[MLARun, ...]:
        return plan_runs(
            kind,
            query_lens,
            seq_lens,
            can_mask=self._can_mask,
            max_rows=self._context_rows(kind),
            alignment=self.plan.block_size,
            place=self._place,
        )
