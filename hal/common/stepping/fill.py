"""Filling a step's arrays in numpy, from lengths and tables that the host can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hal.common.contract.parallel import Parallel, owner

from .block_ids import TableRules, forget_blocks
from .host_step import HostStep
from .placement import Placement

Ints = npt.NDArray[Any]


def fill_from_host(
    step: HostStep,
    placement: Placement,
    arrays: Mapping[str, Ints],
    rules: TableRules,
    parallel: Parallel,
    *,
    has_tables: bool = False,
) -> None:
    """Write a step into the host arrays, in both orders; padded rows are neutral.

    A token that another DCP rank owns gets slot -1. has_tables: the step's tables are read where they lie, decodes first.
    """
    is_decoding = step.is_single and step.num_decodes == step.num_reqs
    if is_decoding:
        _fill_decodes(step, arrays)
    else:
        _fill_engine_order(step, placement, arrays)
    arrays["positions"][: step.num_tokens] = placement.positions
    if not has_tables:
        _fill_tables(step, arrays["tables"], rules)
    _fill_slots(step, placement, arrays["slots"], rules.block_size, parallel)
    if not is_decoding:
        _fill_execution_order(step, arrays)
    if step.padded_reqs > step.num_reqs or step.padded_tokens > step.num_tokens:
        _fill_padding(step, arrays)


def _fill_decodes(step: HostStep, arrays: Mapping[str, Ints]) -> None:
    """Fill what both orders have of a step of decodes of one token: a token is its request, and sees all of it."""
    num_reqs, counted = step.num_reqs, arrays["num_counted"]
    if counted[0] < num_reqs:
        counting = np.arange(num_reqs + 1, dtype=np.int32)
        for name in ("req_id", "phase_req_id"):
            arrays[name][:num_reqs] = counting[:-1]
        for name in ("starts", "decode_starts"):
            arrays[name][: num_reqs + 1] = counting
        counted[0] = num_reqs
    arrays["seq_lens"][:num_reqs] = step.seq_lens
    arrays["key_bounds"][:num_reqs] = step.seq_lens


def _fill_engine_order(step: HostStep, placement: Placement, arrays: Mapping[str, Ints]) -> None:
    arrays["num_counted"][0] = 0
    arrays["starts"][: step.num_reqs + 1] = step.starts
    arrays["seq_lens"][: step.num_reqs] = step.seq_lens
    arrays["req_id"][: step.num_tokens] = placement.req_id


def _fill_tables(step: HostStep, tables: Ints, rules: TableRules) -> None:
    """Copy every group's table, and leave -1 where it names no page before its live columns: libraries look such columns up."""
    num_reqs = step.num_reqs
    for group, (filled, rule) in enumerate(zip(tables, rules.groups, strict=True)):
        table = step.block_tables[group if len(step.block_tables) > 1 else 0]
        columns = min(table.shape[1], filled.shape[1])
        filled[:num_reqs, :columns] = table[:, :columns]
        if len(step.block_tables) == 1 and rules.shared is not None:
            rule = rules.shared
        if rule.reach and num_reqs:
            first = rule.first_column(step.seq_lens - step.query_lens, rules.tokens_per_page)
            forget_blocks(filled[:num_reqs], int(first.max()), rule.num_blocks)


def _fill_slots(step: HostStep, placement: Placement, slots: Ints, block_size: int, parallel: Parallel) -> None:
    if step.slots is not None:
        for group, filled in enumerate(slots):
            filled[: step.padded_tokens] = step.slots[group if len(step.slots) > 1 else 0]
        return
    num_tokens = step.num_tokens
    is_remote = owner(placement.positions, parallel) != parallel.dcp_rank if parallel.dcp > 1 else None
    for filled, pages in zip(slots, placement.pages, strict=False):
        # page * block_size + place % block_size, in the fewest passes. A slot may need more than 32 bits.
        moved = np.subtract(pages, placement.columns, dtype=np.int64)
        moved *= block_size
        placed = np.add(placement.spread(moved), placement.places, out=filled[:num_tokens])
        if is_remote is not None:
            placed[is_remote] = -1
    if len(placement.pages) < len(slots):
        slots[1:, :num_tokens] = slots[0, :num_tokens]


def _fill_execution_order(step: HostStep, arrays: Mapping[str, Ints]) -> None:
    num_tokens = step.num_tokens
    if step.order is not None:
        starts = _fill_other_order(step, arrays, step.order)
    else:
        starts = step.starts
        arrays["phase_req_id"][:num_tokens] = arrays["req_id"][:num_tokens]
        np.add(arrays["positions"][:num_tokens], 1, out=arrays["key_bounds"][:num_tokens], casting="same_kind")
    _fill_phases(step, arrays, starts)


def _fill_other_order(step: HostStep, arrays: Mapping[str, Ints], order: Ints) -> Ints:
    """Fill what is in execution order; where each request's tokens begin there."""
    num_reqs, num_tokens, query_lens = step.num_reqs, step.num_tokens, step.query_lens[order]
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    token_order = arrays["token_order"][:num_tokens]
    np.add(np.arange(num_tokens), np.repeat(step.starts[:-1][order] - starts[:-1], query_lens), out=token_order)
    arrays["key_bounds"][:num_tokens] = arrays["positions"][token_order] + 1
    arrays["phase_req_id"][:num_tokens] = np.repeat(np.arange(num_reqs, dtype=np.int32), query_lens)
    arrays["ordered_lens"][:num_reqs] = step.seq_lens[order]
    arrays["ordered_tables"][:, :num_reqs] = arrays["tables"][:, order]
    return starts


def _fill_phases(step: HostStep, arrays: Mapping[str, Ints], starts: Ints) -> None:
    """Fill where each phase's requests begin, as starts has it for both. A captured graph reads past those of this step."""
    decodes, most = step.num_decodes, step.padded_reqs
    first = int(starts[decodes])
    arrays["decode_starts"][: decodes + 1] = starts[: decodes + 1]
    arrays["decode_starts"][decodes + 1 : most + 1] = first
    prefills = step.num_reqs - decodes
    if prefills:
        arrays["phase_req_id"][first : step.num_tokens] -= decodes
        arrays["prefill_starts"][: prefills + 1] = starts[decodes:] - first
        arrays["prefill_starts"][prefills + 1 : most - decodes + 1] = step.num_tokens - first


def _fill_padding(step: HostStep, arrays: Mapping[str, Ints]) -> None:
    """Make padded requests empty, and padded tokens ones that see nothing: a device batch's are run with the others."""
    requests, tokens = slice(step.num_reqs, step.padded_reqs), slice(step.num_tokens, step.padded_tokens)
    arrays["num_counted"][0] = 0
    arrays["starts"][step.num_reqs + 1 : step.padded_reqs + 1] = step.num_tokens
    if step.num_decodes == step.num_reqs:
        arrays["decode_starts"][step.num_reqs + 1 : step.padded_reqs + 1] = step.num_tokens
    for name in ("seq_lens", "ordered_lens"):
        arrays[name][requests] = 0
    for name in ("tables", "ordered_tables"):
        arrays[name][:, requests] = 0
    for name in ("positions", "req_id", "phase_req_id", "key_bounds"):
        arrays[name][tokens] = 0
    arrays["slots"][:, tokens] = -1
