"""Filling a step's arrays from device tensors, where they lie and without looking at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hal.common.contract.device_batch import DeviceBatch
from hal.common.contract.parallel import Parallel, local_position, owner
from hal.common.contract.repeats import forget_repeats

from .block_ids import TableRules
from .device_findings import drop_ids, drop_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a device batch named that is not there: how many tokens are written nowhere, int64 [], and pages in live columns.

    pages: int64 [requests], over all tables.
    """

    tokens: torch.Tensor
    pages: torch.Tensor


def fill_from_device(
    batch: DeviceBatch,
    arrays: Mapping[str, torch.Tensor],
    block_size: int,
    rules: TableRules,
    num_decodes: int,
    decode_tokens: int,
    parallel: Parallel,
    shared: Sequence[torch.Tensor | None],
) -> Lost:
    """Write a device batch into the device arrays; what was lost on the way.

    A token without a page of the pool, one that belongs to no request and one that another DCP rank owns get slot -1; an id
    that is no page of the pool becomes -1; a request whose length cannot be is as if it had none, and so are all where it is
    not clear whose a token is. A token on a page that several requests hold, by shared, bool [pages] of each group or None, and
    one whose place an earlier token of the step takes get slot -1 too. Nothing is read back.
    """
    requests, tokens = batch.num_reqs, batch.num_tokens
    starts = arrays["starts"][: requests + 1].copy_(batch.query_start_loc)
    lens = arrays["seq_lens"][:requests].copy_(batch.seq_lens)
    drop_requests(starts, lens, batch, num_decodes, decode_tokens)
    req_id, positions = arrays["req_id"][:tokens], arrays["positions"][:tokens]
    index = torch.arange(tokens, device=starts.device, dtype=torch.int32)
    torch.searchsorted(starts[1:], index, right=True, out_int32=True, out=req_id)
    is_real = index < starts[-1]
    req_id.mul_(is_real)
    # One row more than a step without requests has: its padded tokens look theirs up too.
    rows = max(1, requests)
    shift = arrays["seq_lens"][:rows] - arrays["starts"][1 : rows + 1]
    unclamped = index + shift[req_id]
    is_placed = is_real & (unclamped >= 0)
    positions.copy_(torch.where(is_placed, unclamped, 0))
    arrays["key_bounds"][:tokens] = torch.where(is_placed, positions + 1, 0)
    phase_req_id = arrays["phase_req_id"][:tokens]
    phase_req_id[:decode_tokens] = req_id[:decode_tokens]
    torch.clamp(req_id[decode_tokens:] - num_decodes, min=0, out=phase_req_id[decode_tokens:])
    arrays["decode_starts"][: num_decodes + 1] = starts[: num_decodes + 1]
    torch.clamp(starts[num_decodes:] - decode_tokens, min=0, out=arrays["prefill_starts"][: requests - num_decodes + 1])
    lost_pages = _fill_tables(batch, arrays, rules)
    has_slot = _fill_slots(batch, arrays, block_size, rules, is_placed, parallel, shared)
    is_claimed = index < batch.query_start_loc[-1]
    return Lost(tokens=(is_claimed & ~has_slot).sum(), pages=lost_pages)


def _fill_tables(batch: DeviceBatch, arrays: Mapping[str, torch.Tensor], rules: TableRules) -> torch.Tensor:
    """Copy every group's table, ids that are no pages left out; int64 [requests], how many of those were live."""
    requests = batch.num_reqs
    starts, lens, tables = arrays["starts"][: requests + 1], arrays["seq_lens"][:requests], arrays["tables"]
    lost = torch.zeros_like(lens, dtype=torch.int64)
    each = rules.for_tables(len(batch.block_tables))
    for number, (given, rule) in enumerate(zip(batch.block_tables, each, strict=True)):
        columns = min(given.shape[1], tables.shape[2])
        filled = tables[number, :requests, :columns].copy_(given[:, :columns])
        lost += drop_ids(filled, starts, lens, rule, rules.tokens_per_page)
    for group in range(len(each), tables.shape[0]):
        tables[group, :requests, :columns] = filled
    return lost


def _fill_slots(
    batch: DeviceBatch,
    arrays: Mapping[str, torch.Tensor],
    block_size: int,
    rules: TableRules,
    is_placed: torch.Tensor,
    parallel: Parallel,
    shared: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Fill every group's slots; bool [tokens], whether a token that should be written can be, in every group."""
    requests, tokens = batch.num_reqs, batch.num_tokens
    req_id, index = arrays["req_id"][:tokens], arrays["positions"][:tokens]
    place = index % rules.tokens_per_page
    is_own = None
    if parallel.dcp > 1:
        is_own = owner(index, parallel) == parallel.dcp_rank
        index = local_position(index, parallel)
    page = index // block_size
    has_slot = is_placed
    for group, tables in enumerate(arrays["tables"]):
        num_blocks, slots = rules.groups[group].num_blocks, arrays["slots"][group][:tokens]
        if batch.slot_mapping is not None:
            given = batch.slot_mapping[group if len(batch.slot_mapping) > 1 else 0]
            is_slot = is_placed & (given < num_blocks * block_size)
            is_slot = is_slot & ((given < 0) | _is_free(given, is_slot, block_size, shared[group]))
            slots.copy_(torch.where(is_slot, given, -1))
            has_slot = has_slot & is_slot
            continue
        columns = min(batch.block_tables[group if len(batch.block_tables) > 1 else 0].shape[1], tables.shape[1])
        if not requests or not columns:
            slots.fill_(-1)
            has_slot = has_slot & False
            continue
        block = tables[req_id, page.clamp(max=columns - 1)]
        usable = is_placed & (block >= 0) & (block < num_blocks) & (page < columns)
        usable = usable & _is_free(block.long() * rules.tokens_per_page + place, usable, rules.tokens_per_page, shared[group])
        has_slot = has_slot & usable
        is_written = usable if is_own is None else usable & is_own
        slots.copy_(torch.where(is_written, block.long() * block_size + index % block_size, -1))
    return has_slot


def _is_free(place: torch.Tensor, is_used: torch.Tensor, page_rows: int, shared: torch.Tensor | None) -> torch.Tensor:
    """bool [tokens], whether a token may be written to its place, int64 page * page_rows + row, where it is used at all."""
    used = torch.where(is_used, place, -1)
    is_free = forget_repeats(used[None])[0] == used
    return is_free if shared is None else is_free & ~shared[(used.clamp(min=0) // page_rows).clamp(max=shared.shape[0] - 1)]
