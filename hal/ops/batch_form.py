"""A PagedBatch as an operator takes it: its fields one by one, without the memo."""

from __future__ import annotations

from typing import Any

import torch

from hal.common.kernels import PagedBatch

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
