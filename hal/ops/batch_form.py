"""A PagedBatch as an operator takes it: its fields one by one, without the memo."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from hal.common.contract.call_values import PagedBatch

from .operands import ANY, INT32, Operand, leading


class BatchOperands(Protocol):
    """The operands that a PagedBatch stands as."""

    @property
    def query_start_loc(self) -> torch.Tensor: ...
    @property
    def seq_lens(self) -> torch.Tensor: ...
    @property
    def block_table(self) -> torch.Tensor: ...
    @property
    def max_query_len(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def num_decodes(self) -> int: ...
    @property
    def key_starts(self) -> torch.Tensor | None: ...
    @property
    def key_stops(self) -> torch.Tensor | None: ...


def flatten_batch(batch: PagedBatch) -> tuple[Any, ...]:
    """The fields of BatchOperands, in their order."""
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


def read_batch(operands: BatchOperands) -> PagedBatch:
    """The batch that operands stand for."""
    return PagedBatch(
        operands.query_start_loc,
        operands.seq_lens,
        operands.block_table,
        operands.max_query_len,
        operands.max_seq_len,
        operands.num_decodes,
        key_starts=operands.key_starts,
        key_stops=operands.key_stops,
    )


def batch_operands(tokens: int, operands: BatchOperands) -> tuple[Operand, ...]:
    """What the tensors of a batch of so many tokens must be."""
    requests = leading(operands.seq_lens)
    ranges = (("key_starts", operands.key_starts), ("key_stops", operands.key_stops))
    return (
        ("query_start_loc", operands.query_start_loc, INT32, (ANY if requests is ANY else requests + 1,)),
        ("seq_lens", operands.seq_lens, INT32, (requests,)),
        ("block_table", operands.block_table, INT32, (requests, ANY)),
        *((name, tensor, INT32, (tokens,)) for name, tensor in ranges if tensor is not None),
    )
