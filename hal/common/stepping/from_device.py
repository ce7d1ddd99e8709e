"""A step's metadata from an engine's device tensors: without a look at them, unless they lie where the host sees them."""

from __future__ import annotations

import torch

from hal.common.contract.device_batch import DeviceBatch
from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BatchError
from hal.common.contract.step import Phase, StepMetadata
from hal.common.planning.step_arrays import ALIGNMENT

from .checks import check_device_batch
from .device_findings import find_mistake, find_wrong_hint, hide_requests
from .fill import fill_from_host
from .fill_device import fill_from_device
from .fill_rows import fill_rows
from .host_step import HostStep, see_device_batch
from .parts import StepParts
from .placement import Placement, place_tokens
from .shared_pages import SharedPages
from .writes import find_repeated_pages, find_wrong_write


class DeviceFiller:
    """Fills steps from device tensors, and counts what these named that is not there: tokens and pages, int64 []."""

    def __init__(self, parts: StepParts, torch_device: str) -> None:
        self._parts = parts
        self._is_on_host = parts.device_type == "cpu"
        # A table that is read in place is left as it is: no page before its live columns can be made -1 there.
        self._reads_in_place = self._is_on_host and not any(rule.reach for rule in parts.rules.groups)
        self._shared_pages = SharedPages(torch_device)
        self.lost_tokens = torch.zeros((), dtype=torch.int64, device=torch_device)
        self.lost_pages = torch.zeros((), dtype=torch.int64, device=torch_device)

    def build(self, batch: DeviceBatch, owner: object) -> StepMetadata:
        """The metadata of a step; BatchError where what the host was told breaks a limit, under HAL_DEBUG=1 for wrong values."""
        parts = self._parts
        check_device_batch(batch, parts.plan.limits, parts.rules, parts.device_type)
        num_reqs, num_tokens = counts = (batch.num_reqs, batch.num_tokens)
        first = batch.count_decodes(parts.decode_len)
        first_token = batch.count_decode_tokens(first, parts.decode_len)
        seen = self._see_if_sound(batch, first, first_token)
        parts.begin()
        if seen is not None and self._can_read_in_place(batch):
            parts.assembler.given_tables = batch.block_tables
        may_hide = seen is None
        decode = self._make_phase("decode", batch, slice(0, first), slice(0, first_token), may_hide)
        prefill = self._make_phase("prefill", batch, slice(first, num_reqs), slice(first_token, num_tokens), may_hide)
        longest = (batch.max_query_len, batch.max_seq_len)
        metadata = parts.assembler.assemble(owner, parts.step_id, counts, counts, first, longest, True, decode, prefill)
        if seen is not None and self._is_on_host:
            self._fill_on_host(*seen)
        else:
            self._fill_on_device(batch, first, first_token)
        return parts.finish(metadata)

    def _see_if_sound(self, batch: DeviceBatch, num_decodes: int, decode_tokens: int) -> tuple[HostStep, Placement] | None:
        """The batch as the host sees it, where it does and nothing is wrong; BatchError under HAL_DEBUG=1 where something is."""
        is_debugged = read_variable("HAL_DEBUG") == "1"
        if not is_debugged and not self._is_on_host:
            return None
        plan, rules, placement = self._parts.plan, self._parts.rules, None
        step = see_device_batch(batch, num_decodes)
        mistake = find_mistake(batch, step, rules, decode_tokens)
        if is_debugged:
            mistake = mistake or find_wrong_hint(batch, step)
        if mistake is None:
            placement = place_tokens(step, plan.block_size, plan.parallel)
            mistake = find_wrong_write(step, placement, rules)
        if is_debugged:
            mistake = mistake or find_repeated_pages(step.block_tables, step.query_lens, step.seq_lens, rules)
            if mistake is not None:
                raise BatchError(mistake)
        return None if placement is None or mistake is not None else (step, placement)

    def _can_read_in_place(self, batch: DeviceBatch) -> bool:
        """Whether the batch's tables can stand in for the builder's own: on the CPU, where copying them would be most of a step.

        They must be laid out alike, since compiled launches tell layouts apart, and have no page to leave out.
        """
        if not self._reads_in_place:
            return False
        width = self._parts.plan.block_table_width
        for table in batch.block_tables:
            if table.shape[1] != width or table.data_ptr() % ALIGNMENT or not table.is_contiguous():
                return False
        return True

    def _make_phase(self, name: str, batch: DeviceBatch, requests: slice, tokens: slice, may_hide: bool) -> Phase | None:
        if tokens.start == tokens.stop:
            return None
        planner = self._parts.planner
        if batch.query_lens is None or batch.seq_lens_upper is None:
            work = planner.spread(requests.stop - requests.start, tokens.stop - tokens.start, batch.max_seq_len)
        else:
            work = planner.cut(name, batch.query_lens[requests], batch.seq_lens_upper[requests])
        longest = (batch.max_query_len, batch.max_seq_len)
        return self._parts.assembler.phase(name, requests, tokens, longest, True, work=work, may_hide_requests=may_hide)

    def _fill_on_host(self, step: HostStep, placement: Placement) -> None:
        parts, arrays = self._parts, self._parts.staging.host
        has_tables = parts.assembler.given_tables is not None
        fill_from_host(step, placement, arrays, parts.rules, parts.plan.parallel, has_tables=has_tables)
        if parts.row_rules:
            fill_rows(parts.row_rules, arrays, parts.plan.block_size, True, step.padded_reqs, step.padded_tokens)

    def _fill_on_device(self, batch: DeviceBatch, num_decodes: int, decode_tokens: int) -> None:
        parts, plan = self._parts, self._parts.plan
        arrays = parts.staging.device
        parts.staging.host["num_counted"][0] = 0
        parts.staging.upload()
        # After the upload, which would overwrite what is computed on the device.
        shared = [self._shared_pages.see(rule.pool) for rule in parts.rules.groups]
        lost = fill_from_device(batch, arrays, plan.block_size, parts.rules, num_decodes, decode_tokens, plan.parallel, shared)
        if parts.row_rules:
            fill_rows(parts.row_rules, arrays, plan.block_size, True, batch.num_reqs, batch.num_tokens)
        self.lost_tokens += lost.tokens
        self.lost_pages += lost.pages.sum()
        # A group that keeps fewer rows than tokens has found its slots by the whole lengths before.
        hide_requests(arrays, lost.pages > 0, batch.num_tokens)
