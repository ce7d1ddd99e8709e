"""Filling a step's arrays: from host lengths in numpy, or from device tensors where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .batch import Batch
from .block_ids import TableRules, first_columns, forget_blocks
from .device_batch import DeviceBatch, as_host_batch
from .device_findings import drop_ids, drop_requests
from .parallel import Parallel, local_position, owner

Ints = npt.NDArray[Any]


def step_regions(max_requests: int, max_tokens: int, table_width: int, num_groups: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """The arrays of a step: those of the engine's order, and those of the execution order (decodes first)."""
    return {
        "positions": ((max_tokens,), "int64"),
        "token_order": ((max_tokens,), "int64"),
        "slots": ((num_groups, max_tokens), "int64"),
        "req_id": ((max_tokens,), "int32"),
        "phase_req_id": ((max_tokens,), "int32"),
        "key_bounds": ((max_tokens,), "int32"),
        "starts": ((max_requests + 1,), "int32"),
        "seq_lens": ((max_requests,), "int32"),
        "decode_starts": ((max_requests + 1,), "int32"),
        "prefill_starts": ((max_requests + 1,), "int32"),
        "ordered_lens": ((max_requests,), "int32"),
        "tables": ((num_groups, max_requests, table_width), "int32"),
        "ordered_tables": ((num_groups, max_requests, table_width), "int32"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """A host batch with what was worked out of it: its order (None where decodes come first) and its padded sizes."""

    batch: Batch
    order: Ints | None
    num_decodes: int
    padded_reqs: int
    padded_tokens: int


def arrange(batch: Batch, decode_len: int) -> HostStep:
    """The batch's execution order and padded sizes."""
    order, num_decodes = None, batch.num_reqs
    if not batch.is_single or batch.is_prefilling is not None:
        decodes = batch.decodes(decode_len)
        num_decodes = int(decodes.sum())
        if not decodes[:num_decodes].all():
            order = np.argsort(~decodes, kind="stable")
    return HostStep(
        batch=batch,
        order=order,
        num_decodes=num_decodes,
        padded_reqs=batch.num_reqs if batch.num_reqs_padded is None else batch.num_reqs_padded,
        padded_tokens=batch.num_tokens if batch.num_tokens_padded is None else batch.num_tokens_padded,
    )


def fill_from_host(step: HostStep, arrays: Mapping[str, Ints], block_size: int, rules: TableRules, parallel: Parallel) -> None:
    """Write a host batch into the host arrays, in both orders; padded rows are neutral.

    A token that another DCP rank owns gets slot -1.
    """
    _fill_engine_order(step, arrays, block_size, parallel)
    _forget_freed_pages(step.batch, arrays["tables"], rules)
    _fill_execution_order(step, arrays)


def _fill_engine_order(step: HostStep, arrays: Mapping[str, Ints], block_size: int, parallel: Parallel) -> None:
    batch = step.batch
    num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
    starts, req_id, positions = arrays["starts"], arrays["req_id"], arrays["positions"]
    starts[0] = 0
    np.cumsum(batch.query_lens, out=starts[1 : num_reqs + 1])
    starts[num_reqs + 1 : step.padded_reqs + 1] = num_tokens
    arrays["seq_lens"][:num_reqs] = batch.seq_lens
    arrays["seq_lens"][num_reqs : step.padded_reqs] = 0
    requests = np.arange(num_reqs, dtype=np.int32)
    real = slice(0, num_tokens)
    req_id[real] = requests if batch.is_single else np.repeat(requests, batch.query_lens)
    if num_tokens:
        # A token's position is its index in the step moved by where its request's new tokens begin.
        shift = batch.seq_lens - starts[1 : num_reqs + 1]
        np.add(np.arange(num_tokens), shift[req_id[real]], out=positions[real])
    tail = slice(num_tokens, step.padded_tokens)
    req_id[tail] = 0
    positions[tail] = 0
    is_remote = None
    index = positions[real]
    if parallel.dcp > 1:
        is_remote = owner(index, parallel) != parallel.dcp_rank
        index = local_position(index, parallel)
    page = index // block_size
    offset = index - page * block_size
    for group, tables in enumerate(arrays["tables"]):
        table = batch.block_tables[group if len(batch.block_tables) > 1 else 0]
        columns = min(table.shape[1], tables.shape[1])
        tables[:num_reqs, :columns] = table[:, :columns]
        tables[num_reqs : step.padded_reqs] = 0
        slots = arrays["slots"][group]
        np.multiply(table[req_id[real], page], block_size, out=slots[real], dtype=np.int64)
        slots[real] += offset
        if is_remote is not None:
            slots[real][is_remote] = -1
        slots[tail] = -1


def _forget_freed_pages(batch: Batch, tables: Ints, rules: TableRules) -> None:
    """Leave -1 where a table names no page behind a window: kernels of libraries look such columns up, and skip it."""
    for group, table in enumerate(tables):
        rule = rules.shared if len(batch.block_tables) == 1 and rules.shared is not None else rules.groups[group]
        if rule.window is not None and batch.num_reqs:
            first = first_columns(batch.seq_lens - batch.query_lens, rule.window, rules.tokens_per_page)
            forget_blocks(table[: batch.num_reqs], int(first.max()), rule.num_blocks)


def _fill_execution_order(step: HostStep, arrays: Mapping[str, Ints]) -> None:
    batch, order, num_decodes = step.batch, step.order, step.num_decodes
    num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
    starts = arrays["starts"][: num_reqs + 1]
    bounds, phase_req_id = arrays["key_bounds"][:num_tokens], arrays["phase_req_id"][:num_tokens]
    if order is None:
        ordered_starts = starts
        np.add(arrays["positions"][:num_tokens], 1, out=bounds, casting="same_kind")
        phase_req_id[:] = arrays["req_id"][:num_tokens]
    else:
        query_lens = batch.query_lens[order]
        ordered_starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
        token_order = arrays["token_order"][:num_tokens]
        np.add(np.arange(num_tokens), np.repeat(starts[:-1][order] - ordered_starts[:-1], query_lens), out=token_order)
        bounds[:] = arrays["positions"][token_order] + 1
        phase_req_id[:] = np.repeat(np.arange(num_reqs, dtype=np.int32), query_lens)
        arrays["ordered_lens"][:num_reqs] = batch.seq_lens[order]
        arrays["ordered_tables"][:, :num_reqs] = arrays["tables"][:, order]
    first = int(ordered_starts[num_decodes])
    phase_req_id[first:] -= num_decodes
    arrays["decode_starts"][: num_decodes + 1] = ordered_starts[: num_decodes + 1]
    arrays["prefill_starts"][: num_reqs - num_decodes + 1] = ordered_starts[num_decodes:] - first


def fill_from_seen(
    batch: DeviceBatch,
    num_decodes: int,
    arrays: Mapping[str, Ints],
    block_size: int,
    rules: TableRules,
    parallel: Parallel,
) -> None:
    """Write a device batch that lies on the CPU and has nothing wrong into the host arrays, which is quicker than in torch."""
    seen = as_host_batch(batch)
    step = HostStep(batch=seen, order=None, num_decodes=num_decodes, padded_reqs=seen.num_reqs, padded_tokens=batch.num_tokens)
    fill_from_host(step, arrays, block_size, rules, parallel)
    tail = slice(seen.num_tokens, batch.num_tokens)
    arrays["key_bounds"][tail] = 0
    arrays["phase_req_id"][tail] = 0
    for group, given in enumerate(batch.slot_mapping or ()):
        arrays["slots"][group if len(batch.slot_mapping or ()) > 1 else slice(None), : batch.num_tokens] = given.numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a device batch named that is not there, int64 []: tokens that are written nowhere, ids in live columns of tables."""

    tokens: torch.Tensor
    pages: torch.Tensor


def fill_from_device(
    batch: DeviceBatch,
    arrays: Mapping[str, torch.Tensor],
    block_size: int,
    rules: TableRules,
    num_decodes: int,
    parallel: Parallel,
    *,
    is_sound: bool,
) -> Lost | None:
    """Write a device batch into the device arrays; what was lost on the way, None where is_sound says that nothing can be.

    A token without a page of the pool, one that belongs to no request and one that another DCP rank owns get slot -1; an id
    that is no page of the pool becomes -1; a request whose length cannot be is as if it had none. Nothing is read back.
    """
    requests, tokens = batch.num_reqs, batch.num_tokens
    starts = arrays["starts"][: requests + 1].copy_(batch.query_start_loc)
    lens = arrays["seq_lens"][:requests].copy_(batch.seq_lens)
    if not is_sound:
        starts.clamp_(min=0, max=tokens)
        drop_requests(starts, lens, batch.max_seq_len)
    req_id, positions = arrays["req_id"][:tokens], arrays["positions"][:tokens]
    index = torch.arange(tokens, device=starts.device, dtype=torch.int32)
    torch.searchsorted(starts[1:], index, right=True, out_int32=True, out=req_id)
    is_real = index < starts[-1]
    req_id.clamp_(max=max(0, requests - 1))
    shift = lens - starts[1:]
    unclamped = index + shift[req_id]
    positions.copy_(unclamped.clamp(min=0))
    is_placed = is_real if is_sound else is_real & (unclamped >= 0)
    arrays["key_bounds"][:tokens] = torch.where(is_placed, positions + 1, 0)
    arrays["phase_req_id"][:tokens] = req_id - (req_id >= num_decodes).to(torch.int32) * num_decodes
    arrays["decode_starts"][: num_decodes + 1] = starts[: num_decodes + 1]
    arrays["prefill_starts"][: requests - num_decodes + 1] = starts[num_decodes:] - starts[num_decodes]
    lost_pages = _fill_tables(batch, arrays, rules, is_sound)
    has_slot = _fill_slots(batch, arrays, block_size, rules, is_placed, parallel)
    return None if is_sound else Lost(tokens=(is_real & ~has_slot).sum(), pages=lost_pages)


def _fill_tables(batch: DeviceBatch, arrays: Mapping[str, torch.Tensor], rules: TableRules, is_sound: bool) -> torch.Tensor:
    """Copy every group's table, ids that are no pages left out unless all is sound; int64 [], how many of those were live."""
    requests = batch.num_reqs
    starts, lens, tables = arrays["starts"][: requests + 1], arrays["seq_lens"][:requests], arrays["tables"]
    lost = torch.zeros((), dtype=torch.int64, device=lens.device)
    each = rules.for_tables(len(batch.block_tables))
    for number, (given, rule) in enumerate(zip(batch.block_tables, each, strict=True)):
        columns = min(given.shape[1], tables.shape[2])
        filled = tables[number, :requests, :columns].copy_(given[:, :columns])
        if not is_sound:
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
) -> torch.Tensor:
    """Fill every group's slots; bool [tokens], whether a token that should be written can be, in every group."""
    requests, tokens = batch.num_reqs, batch.num_tokens
    req_id, index = arrays["req_id"][:tokens], arrays["positions"][:tokens]
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
            is_slot = given < num_blocks * block_size
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
        has_slot = has_slot & usable
        is_written = usable if is_own is None else usable & is_own
        slots.copy_(torch.where(is_written, block.long() * block_size + index % block_size, -1))
    return has_slot
