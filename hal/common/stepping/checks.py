"""Checks of a batch against a plan, all of them before anything is written."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from hal.common.contract.batch import Batch
from hal.common.contract.device_batch import DeviceBatch
from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BatchError
from hal.common.contract.limits import Limits

from .block_ids import TableRule, TableRules, find_wrong_block, holds_strangers, live_stops
from .host_step import HostStep
from .placement import Placement
from .writes import find_repeated_pages, find_wrong_write


def check_batch(batch: Batch, longest: int, limits: Limits, rules: TableRules) -> None:
    """Raise BatchError, with the values, for more than the plan allows or a table without a page that a request needs.

    longest: the most tokens of a request.
    """
    check_counts(batch.num_reqs, batch.num_tokens, limits)
    if longest > limits.max_model_len:
        request = int(batch.seq_lens.argmax())
        raise BatchError(f"request {request} has seq_len {longest}, the plan allows max_model_len = {limits.max_model_len}")
    _check_padding(batch, limits)
    for table, rule in zip(batch.block_tables, rules.for_tables(len(batch.block_tables)), strict=True):
        _check_table(batch, table, longest, rule, rules.tokens_per_page)


def check_writes(step: HostStep, placement: Placement, rules: TableRules) -> None:
    """Raise BatchError, with the values, where a new token would go to a shared page or to another one's place."""
    mistake = find_wrong_write(step, placement, rules)
    if mistake is None and read_variable("HAL_DEBUG") == "1":
        mistake = find_repeated_pages(step.block_tables, step.query_lens, step.seq_lens, rules)
    if mistake is not None:
        raise BatchError(mistake)


def check_counts(num_reqs: int, num_tokens: int, limits: Limits) -> None:
    """Raise BatchError where a step has more requests or new tokens than the plan allows."""
    if num_reqs > limits.max_num_seqs:
        raise BatchError(f"{num_reqs} requests in a step, the plan allows max_num_seqs = {limits.max_num_seqs}")
    if num_tokens > limits.max_num_batched_tokens:
        raise BatchError(
            f"{num_tokens} new tokens in a step, the plan allows max_num_batched_tokens = {limits.max_num_batched_tokens}"
        )


def check_device_batch(batch: DeviceBatch, limits: Limits, rules: TableRules, device_type: str) -> None:
    """Raise BatchError where what the host can see breaks a limit of the plan."""
    requests, tokens, longest = batch.num_reqs, batch.num_tokens, batch.max_seq_len
    if requests > limits.max_num_seqs or tokens > limits.max_num_batched_tokens or longest > limits.max_model_len:
        raise BatchError(
            f"a step has {requests} requests, {tokens} new tokens and max_seq_len {longest}; the plan allows "
            f"{limits.max_num_seqs}, {limits.max_num_batched_tokens} and {limits.max_model_len}"
        )
    if batch.max_query_len > longest:
        raise BatchError(f"max_query_len {batch.max_query_len} exceeds max_seq_len {longest}, which includes it")
    rules.for_tables(len(batch.block_tables))
    needed = -(-longest // rules.tokens_per_page)
    for table in batch.block_tables:
        if table.shape[1] < needed:
            raise BatchError(
                f"the block table has {table.shape[1]} columns; max_seq_len {longest} needs {needed} pages of "
                f"{rules.tokens_per_page} tokens"
            )
    if batch.seq_lens.device.type != device_type:
        raise BatchError(f"the batch lies on {batch.seq_lens.device}, the plan runs on {device_type}")


def _check_padding(batch: Batch, limits: Limits) -> None:
    if batch.num_tokens_padded is None and batch.num_reqs_padded is None:
        return
    tokens = batch.num_tokens if batch.num_tokens_padded is None else batch.num_tokens_padded
    requests = batch.num_reqs if batch.num_reqs_padded is None else batch.num_reqs_padded
    for name, padded, real, limit in (
        ("num_tokens_padded", tokens, batch.num_tokens, limits.max_num_batched_tokens),
        ("num_reqs_padded", requests, batch.num_reqs, limits.max_num_seqs),
    ):
        if not real <= padded <= limit:
            raise BatchError(f"{name} is {padded}; expected {real}, which the step has, to {limit}, the plan's limit")
    if requests > batch.num_reqs and tokens < requests:
        raise BatchError(
            f"num_reqs_padded is {requests} and there are {tokens} tokens, padded ones included; pad the tokens to at least "
            f"{requests} too"
        )


def _check_table(batch: Batch, table: npt.NDArray[Any], longest: int, rule: TableRule, tokens_per_page: int) -> None:
    needed = -(-longest // tokens_per_page)
    if table.shape[1] < needed:
        request = int(batch.seq_lens.argmax())
        raise BatchError(
            f"the block table has {table.shape[1]} columns; request {request} needs {needed} pages of {tokens_per_page} tokens"
        )
    if not holds_strangers(table, needed, rule.num_blocks):
        return
    first = rule.first_column(batch.seq_lens - batch.query_lens, tokens_per_page)
    stop = live_stops(batch.query_lens, batch.seq_lens, tokens_per_page)
    wrong = find_wrong_block(table, first, stop, rule.num_blocks)
    if wrong is not None:
        request, column = wrong
        blocks = f"blocks are 0 to {rule.num_blocks - 1}"
        behind = f"; columns before {first[request]} {rule.describe_reach()}" if first[request] else ""
        raise BatchError(f"request {request} has block {table[request, column]} in column {column}; {blocks}{behind}")
