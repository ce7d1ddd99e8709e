"""A PagedBatch as an operator takes it: its fields one by one, without the memo."""

from __future__ import annotations

from typing import Any

import torch

from hal.common.contract.call_values import PagedBatch

from .operands import ANY, INT32, Operand, leading

BATCH = (
    "Tensor query_start_loc, Tensor seq_lens, Tensor block_table, SymInt max_query_len, SymInt max_seq_len, SymInt num_decodes, "
    "Tensor? key_starts, Tensor? key_stops"
)
"""How a PagedBatch stands in a schema."""


def flatten_batch(batch: PagedBatch) -> tuple[Any, ...]:
    """The fields that BATCH lists."""
    return (
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_table,
        batch.max_query_len,
        batch.max_seq_len,
        batch.num_decodes,
        batch.key_starts,
        batch.key_stops,
    )


def read_batch(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    num_decodes: int,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
) -> PagedBatch:
    """The batch of these fields."""
    return PagedBatch(
        query_start_loc, seq_lens, block_table, max_query_len, max_seq_len, num_decodes, None, key_starts, key_stops
    )


def batch_operands(
    tokens: int,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
) -> tuple[Operand, ...]:
    """What the tensors of a batch of so many tokens must be."""
    requests = leading(seq_lens)
    ranges = (("key_starts", key_starts), ("key_stops", key_stops))
    return (
        ("query_start_loc", query_start_loc, INT32, (ANY if requests is ANY else requests + 1,)),
        ("seq_lens", seq_lens, INT32, (requests,)),
        ("block_table", block_table, INT32, (requests, ANY)),
        *((name, tensor, INT32, (tokens,)) for name, tensor in ranges if tensor is not None),
    )
