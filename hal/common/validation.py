"""Checks of a batch against a plan, all of them before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .batch import Batch
from .errors import BatchError
from .limits import Limits


def check_batch(batch: Batch, limits: Limits, block_size: int, num_blocks: int, num_groups: int) -> None:
    """Nothing, or BatchError with the values."""
    if batch.num_reqs > limits.max_num_seqs:
        raise BatchError(f"{batch.num_reqs} requests in a step, the plan allows max_num_seqs = {limits.max_num_seqs}")
    if batch.num_tokens > limits.max_num_batched_tokens:
        raise BatchError(
            f"{batch.num_tokens} new tokens in a step, the plan allows max_num_batched_tokens = {limits.max_num_batched_tokens}"
        )
    longest = int(batch.seq_lens.max(initial=0))
    if longest > limits.max_model_len:
        request = int(batch.seq_lens.argmax())
        raise BatchError(f"request {request} has seq_len {longest}, the plan allows max_model_len = {limits.max_model_len}")
    _check_padding(batch, limits)
    if len(batch.block_tables) not in (1, num_groups):
        raise BatchError(f"{len(batch.block_tables)} block tables; expected one, or one per cache group ({num_groups})")
    pages = -(-batch.seq_lens // block_size)
    for table in batch.block_tables:
        _check_table(table, pages, num_blocks, block_size)


def _check_padding(batch: Batch, limits: Limits) -> None:
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


def _check_table(table: npt.NDArray[Any], pages: npt.NDArray[Any], num_blocks: int, block_size: int) -> None:
    needed = int(pages.max(initial=0))
    if table.shape[1] < needed:
        request = int(pages.argmax())
        raise BatchError(
            f"the block table has {table.shape[1]} columns; request {request} needs {needed} pages of {block_size} tokens"
        )
    if not needed or (int(table[:, :needed].min()) >= 0 and int(table[:, :needed].max()) < num_blocks):
        return
    live = np.arange(needed)[None, :] < pages[:, None]
    wrong = np.argwhere(live & ((table[:, :needed] < 0) | (table[:, :needed] >= num_blocks)))
    if wrong.size:
        request, column = (int(index) for index in wrong[0])
        raise BatchError(
            f"request {request} has block {table[request, column]} in column {column}; blocks are 0 to {num_blocks - 1}"
        )
