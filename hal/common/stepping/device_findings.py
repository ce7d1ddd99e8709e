"""What is wrong with a device batch: found where the host can see the values, else made harmless where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from .block_ids import TableRule, TableRules, find_wrong_block, holds_strangers, live_stops

if TYPE_CHECKING:
    from hal.common.contract.device_batch import DeviceBatch

    from .host_step import HostStep

Ints = npt.NDArray[Any]


def find_mistake(batch: DeviceBatch, step: HostStep, rules: TableRules, decode_tokens: int) -> str | None:
    """A sentence with the values of the first thing that is wrong in the batch's tensors; None where all is right.

    step: the batch as the host sees it. decode_tokens: the new tokens of its decodes, as far as the host was told.
    """
    lens = step.seq_lens
    if not step.num_reqs:
        return (
            None if step.starts[0] == 0 else f"query_start_loc is {step.starts.tolist()}; expected [0] of a step without requests"
        )
    if step.is_single:
        least, most, is_short = 1, 1, int(np.minimum.reduce(lens)) < 1
    else:
        query_lens = step.query_lens
        least, most = int(np.minimum.reduce(query_lens)), int(np.maximum.reduce(query_lens))
        # Not by their difference: a length may be as negative as 32 bits allow.
        is_short = bool(np.logical_or.reduce(lens < query_lens))
    if step.starts[0] != 0 or least < 0 or step.num_tokens > batch.num_tokens:
        return f"query_start_loc is {step.starts.tolist()}; expected 0 first, no step back, and at most {batch.num_tokens} last"
    decodes = step.num_decodes
    if decodes < step.num_reqs and step.starts[decodes] != decode_tokens:
        return (
            f"query_start_loc[{decodes}] is {step.starts[decodes]}; the {decodes} decodes that come first have {decode_tokens} "
            "new tokens by num_decodes and query_lens"
        )
    longest = int(np.maximum.reduce(lens))
    if is_short or longest > batch.max_seq_len or most > batch.max_query_len:
        return _describe_wrong_length(batch, step.query_lens, lens)
    return _find_wrong_id(step, rules, longest) or _find_wrong_slot(step, rules)


def _describe_wrong_length(batch: DeviceBatch, query_lens: Ints, lens: Ints) -> str:
    is_wrong = (lens < query_lens) | (lens > batch.max_seq_len) | (query_lens > batch.max_query_len)
    request = int(np.flatnonzero(is_wrong)[0])
    return (
        f"request {request} has query_len {query_lens[request]} and seq_len {lens[request]}; expected at most max_query_len = "
        f"{batch.max_query_len} and max_seq_len = {batch.max_seq_len}, and seq_len, which includes the new tokens, no less than "
        "query_len"
    )


def _find_wrong_id(step: HostStep, rules: TableRules, longest: int) -> str | None:
    size = rules.tokens_per_page
    for ids, rule in zip(step.block_tables, rules.for_tables(len(step.block_tables)), strict=True):
        if not holds_strangers(ids, -(-longest // size), rule.num_blocks):
            continue
        first = rule.first_column(step.seq_lens - step.query_lens, size)
        wrong = find_wrong_block(ids, first, live_stops(step.query_lens, step.seq_lens, size), rule.num_blocks)
        if wrong is not None:
            request, column = wrong
            return f"request {request} has block {ids[request, column]} in column {column}; blocks are 0 to {rule.num_blocks - 1}"
    return None


def _find_wrong_slot(step: HostStep, rules: TableRules) -> str | None:
    if step.slots is None:
        return None
    for values, rule in zip(step.slots, rules.for_tables(len(step.slots)), strict=True):
        count = rule.num_blocks * rules.block_size
        if len(values) and int(np.maximum.reduce(values)) >= count:
            token = int(values.argmax())
            return f"token {token} has slot {values[token]}; slots are -1 or 0 to {count - 1}"
    return None


def find_wrong_hint(batch: DeviceBatch, step: HostStep) -> str | None:
    """A sentence on the first request whose lengths are not what the host was told of them; None where all are.

    Those of prefills are exact; the whole length of a decode is no more than was said.
    """
    for name, hints, lens in (
        ("query_lens", batch.query_lens, step.query_lens),
        ("seq_lens_upper", batch.seq_lens_upper, step.seq_lens),
    ):
        if hints is None:
            continue
        is_wrong = lens > hints
        prefills = slice(step.num_decodes, None)
        is_wrong[prefills] |= (lens[prefills] < hints[prefills]) & (step.query_lens[prefills] > 0)
        if is_wrong.any():
            request = int(is_wrong.argmax())
            return f"request {request} has {lens[request]} in the batch's tensors and {hints[request]} in {name}"
    return None


def drop_requests(starts: torch.Tensor, lens: torch.Tensor, batch: DeviceBatch, num_decodes: int, decode_tokens: int) -> None:
    """Set lens to 0, in place, where a length is less than the request's new tokens or more than any is said to be.

    Everywhere, and starts too, where those are none from 0 to no more than the tokens there are, where a request has more new
    tokens than was said or where the decodes end elsewhere: nobody can say whose a token is, and a kernel that was told of
    fewer tokens would leave rows unwritten.
    """
    query_lens = starts[1:] - starts[:-1]
    adds_up = (query_lens.clamp(min=0, max=batch.max_query_len) == query_lens).all()
    adds_up = adds_up & (starts[0] == 0) & (starts[-1] <= batch.num_tokens)
    if num_decodes < batch.num_reqs:
        adds_up = adds_up & (starts[num_decodes] == decode_tokens)
    lens.mul_((lens >= query_lens) & (lens <= batch.max_seq_len) & adds_up)
    starts.mul_(adds_up)


def drop_ids(
    table: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor, rule: TableRule, tokens_per_page: int
) -> torch.Tensor:
    """Turn ids that are none of the pool's pages into -1, in place; int64 [requests], how many lay in a live column."""
    torch.clamp(torch.where(table < rule.num_blocks, table, -1), min=-1, out=table)
    columns = torch.arange(table.shape[1], device=table.device, dtype=torch.int32)
    query_lens = starts[1:] - starts[:-1]
    stop = (lens + (tokens_per_page - 1)) // tokens_per_page * (query_lens > 0)
    wrong = (table < 0) & (columns < stop[:, None])
    if rule.reach:
        wrong &= columns >= rule.first_column(lens - query_lens, tokens_per_page)[:, None]
    return wrong.sum(1)


def hide_requests(arrays: Mapping[str, torch.Tensor], is_hidden: torch.Tensor, num_tokens: int) -> None:
    """Make requests bool [requests] see no key, in place: a length of 0, and no key for any of their new tokens."""
    requests = is_hidden.shape[0]
    if not requests:
        return
    is_seen = ~is_hidden
    is_seen_by = is_seen[arrays["req_id"][:num_tokens]]
    for name, kept in (("seq_lens", is_seen), ("row_lens", is_seen), ("key_bounds", is_seen_by), ("row_bounds", is_seen_by)):
        if name in arrays:
            arrays[name][..., : kept.shape[0]].mul_(kept)
