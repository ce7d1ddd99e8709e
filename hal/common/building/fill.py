"""Filling a step's arrays in numpy, from lengths and tables that the host can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hal.common.batch import Batch
from hal.common.device_batch import DeviceBatch
from hal.common.parallel import Parallel, local_position, owner

from .block_ids import TableRules, first_columns, forget_blocks

if TYPE_CHECKING:
    import torch

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
    """A step whose values the host can see, with its order (None where decodes come first) and its padded sizes.

    starts: where each request's tokens begin, and where the last one's end. block_tables, and slots where an engine brings
    its own: one for all cache groups, or one per group.
    """

    query_lens: Ints
    seq_lens: Ints
    starts: Ints
    block_tables: tuple[Ints, ...]
    slots: tuple[Ints, ...] | None
    num_tokens: int
    is_single: bool
    order: Ints | None
    num_decodes: int
    padded_reqs: int
    padded_tokens: int

    @property
    def num_reqs(self) -> int:
        """Requests in the step, padded ones left out."""
        return len(self.seq_lens)


def arrange(batch: Batch, decode_len: int) -> HostStep:
    """A host batch in its execution order."""
    order, num_decodes = None, batch.num_reqs
    if not batch.is_single or batch.is_prefilling is not None:
        decodes = batch.decodes(decode_len)
        num_decodes = int(decodes.sum())
        if not decodes[:num_decodes].all():
            order = np.argsort(~decodes, kind="stable")
    starts = np.zeros(batch.num_reqs + 1, np.int32)
    np.cumsum(batch.query_lens, out=starts[1:])
    return HostStep(
        query_lens=batch.query_lens,
        seq_lens=batch.seq_lens,
        starts=starts,
        block_tables=batch.block_tables,
        slots=None,
        num_tokens=batch.num_tokens,
        is_single=batch.is_single,
        order=order,
        num_decodes=num_decodes,
        padded_reqs=batch.num_reqs if batch.num_reqs_padded is None else batch.num_reqs_padded,
        padded_tokens=batch.num_tokens if batch.num_tokens_padded is None else batch.num_tokens_padded,
    )


def see_device_batch(batch: DeviceBatch, num_decodes: int) -> HostStep:
    """A device batch as the host sees it, decodes first: CPU tensors where they lie, others copied when the device is done."""
    starts = _to_host(batch.query_start_loc)
    query_lens, num_tokens = starts[1:] - starts[:-1], int(starts[-1])
    return HostStep(
        query_lens=query_lens,
        seq_lens=_to_host(batch.seq_lens),
        starts=starts,
        block_tables=tuple(map(_to_host, batch.block_tables)),
        slots=None if batch.slot_mapping is None else tuple(map(_to_host, batch.slot_mapping)),
        num_tokens=num_tokens,
        is_single=num_tokens == batch.num_reqs and batch.max_query_len == 1,
        order=None,
        num_decodes=num_decodes,
        padded_reqs=batch.num_reqs,
        padded_tokens=batch.num_tokens,
    )


def _to_host(tensor: torch.Tensor) -> Ints:
    array: Ints = tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()
    return array


def fill_from_host(
    step: HostStep,
    arrays: Mapping[str, Ints],
    block_size: int,
    rules: TableRules,
    parallel: Parallel,
    *,
    has_tables: bool = False,
) -> None:
    """Write a step into the host arrays, in both orders; padded rows are neutral.

    A token that another DCP rank owns gets slot -1. has_tables: the step's tables are read where they lie, decodes first.
    """
    _fill_engine_order(step, arrays)
    if not has_tables:
        _fill_tables(step, arrays["tables"], rules)
    _fill_slots(step, arrays, block_size, parallel)
    _fill_execution_order(step, arrays)


def _fill_engine_order(step: HostStep, arrays: Mapping[str, Ints]) -> None:
    num_reqs, num_tokens = step.num_reqs, step.num_tokens
    starts, req_id, positions = arrays["starts"], arrays["req_id"], arrays["positions"]
    starts[: num_reqs + 1] = step.starts
    starts[num_reqs + 1 : step.padded_reqs + 1] = num_tokens
    arrays["seq_lens"][:num_reqs] = step.seq_lens
    arrays["seq_lens"][num_reqs : step.padded_reqs] = 0
    if step.is_single:
        req_id[:num_tokens] = np.arange(num_reqs, dtype=np.int32)
        np.subtract(step.seq_lens, 1, out=positions[:num_tokens])
    elif num_tokens:
        req_id[:num_tokens] = np.repeat(np.arange(num_reqs, dtype=np.int32), step.query_lens)
        # A token's position is its index in the step moved by where its request's new tokens begin.
        shift = step.seq_lens - starts[1 : num_reqs + 1]
        np.add(np.arange(num_tokens), np.repeat(shift, step.query_lens), out=positions[:num_tokens])
    req_id[num_tokens : step.padded_tokens] = 0
    positions[num_tokens : step.padded_tokens] = 0


def _fill_tables(step: HostStep, tables: Ints, rules: TableRules) -> None:
    """Copy every group's table, and leave -1 where it names no page behind a window: libraries look such columns up."""
    num_reqs = step.num_reqs
    for group, (filled, rule) in enumerate(zip(tables, rules.groups, strict=True)):
        table = step.block_tables[group if len(step.block_tables) > 1 else 0]
        columns = min(table.shape[1], filled.shape[1])
        filled[:num_reqs, :columns] = table[:, :columns]
        filled[num_reqs : step.padded_reqs] = 0
        if len(step.block_tables) == 1 and rules.shared is not None:
            rule = rules.shared
        if rule.window is not None and num_reqs:
            first = first_columns(step.seq_lens - step.query_lens, rule.window, rules.tokens_per_page)
            forget_blocks(filled[:num_reqs], int(first.max()), rule.num_blocks)


def _fill_slots(step: HostStep, arrays: Mapping[str, Ints], block_size: int, parallel: Parallel) -> None:
    num_tokens = step.num_tokens
    if step.slots is not None:
        for group, filled in enumerate(arrays["slots"]):
            filled[: step.padded_tokens] = step.slots[group if len(step.slots) > 1 else 0]
        return
    index = arrays["positions"][:num_tokens]
    is_remote = None
    if parallel.dcp > 1:
        is_remote = owner(index, parallel) != parallel.dcp_rank
        index = local_position(index, parallel)
    req_id, page = arrays["req_id"][:num_tokens], index // block_size
    offset = index - page * block_size
    for group, filled in enumerate(arrays["slots"]):
        table = step.block_tables[group if len(step.block_tables) > 1 else 0]
        slots = filled[:num_tokens]
        np.multiply(table[req_id, page], block_size, out=slots, dtype=np.int64)
        slots += offset
        if is_remote is not None:
            slots[is_remote] = -1
        filled[num_tokens : step.padded_tokens] = -1


def _fill_execution_order(step: HostStep, arrays: Mapping[str, Ints]) -> None:
    order, num_decodes, num_reqs, num_tokens = step.order, step.num_decodes, step.num_reqs, step.num_tokens
    starts = arrays["starts"][: num_reqs + 1]
    bounds, phase_req_id = arrays["key_bounds"], arrays["phase_req_id"]
    # A device batch's padded tokens are run with the others, as tokens that see nothing.
    bounds[num_tokens : step.padded_tokens] = 0
    phase_req_id[num_tokens : step.padded_tokens] = 0
    bounds, phase_req_id = bounds[:num_tokens], phase_req_id[:num_tokens]
    if order is None:
        ordered_starts = starts
        np.add(arrays["positions"][:num_tokens], 1, out=bounds, casting="same_kind")
        phase_req_id[:] = arrays["req_id"][:num_tokens]
    else:
        query_lens = step.query_lens[order]
        ordered_starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
        token_order = arrays["token_order"][:num_tokens]
        np.add(np.arange(num_tokens), np.repeat(starts[:-1][order] - ordered_starts[:-1], query_lens), out=token_order)
        bounds[:] = arrays["positions"][token_order] + 1
        phase_req_id[:] = np.repeat(np.arange(num_reqs, dtype=np.int32), query_lens)
        arrays["ordered_lens"][:num_reqs] = step.seq_lens[order]
        arrays["ordered_lens"][num_reqs : step.padded_reqs] = 0
        arrays["ordered_tables"][:, :num_reqs] = arrays["tables"][:, order]
        arrays["ordered_tables"][:, num_reqs : step.padded_reqs] = 0
    # A graph that was captured with more requests reads past those of this step.
    first = int(ordered_starts[num_decodes])
    arrays["decode_starts"][: num_decodes + 1] = ordered_starts[: num_decodes + 1]
    arrays["decode_starts"][num_decodes + 1 : step.padded_reqs + 1] = first
    if num_decodes < num_reqs:
        phase_req_id[first:] -= num_decodes
        num_prefills = num_reqs - num_decodes
        arrays["prefill_starts"][: num_prefills + 1] = ordered_starts[num_decodes:] - first
        arrays["prefill_starts"][num_prefills + 1 : step.padded_reqs - num_decodes + 1] = num_tokens - first
