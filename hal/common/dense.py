"""Tensors as kernels need them that read memory from an address on, and whether a tensor can be written at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .errors import BatchError
from .kernels import PagedBatch

if TYPE_CHECKING:
    import torch

_MOST = 2**31 - 1


def dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where its last dimension is not dense."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def dense_numbers(name: str, tensor: torch.Tensor, dims: int = 1) -> torch.Tensor:
    """Whole numbers of so many dimensions as dense int32, the tensor itself where it is that; a matrix has dense rows.

    BatchError for anything else. int64 numbers past int32 become the nearest of those, which is no page, row or length either.
    """
    if tensor.dim() != dims or tensor.element_size() != 4 or tensor.is_floating_point():
        tensor = _narrow(name, tensor, dims)
    if dims == 1:
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    return dense_rows(tensor)


def _narrow(name: str, tensor: torch.Tensor, dims: int) -> torch.Tensor:
    import torch

    if tensor.dtype is not torch.int64 or tensor.dim() != dims:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise BatchError(f"{name} is {dtype} {list(tensor.shape)}; expected int32 of {dims} dimensions")
    return tensor.clamp(-_MOST - 1, _MOST).to(torch.int32)


def dense_batch(batch: PagedBatch) -> PagedBatch:
    """The batch with starts, lengths and table as dense_numbers; itself where they are, as every batch of the builder's is.

    Made anew for every call and not once: what an engine keeps such views of changes from step to step.
    """
    starts = dense_numbers("batch.query_start_loc", batch.query_start_loc)
    lens = dense_numbers("batch.seq_lens", batch.seq_lens)
    table = dense_numbers("batch.block_table", batch.block_table, 2)
    if starts is batch.query_start_loc and lens is batch.seq_lens and table is batch.block_table:
        return batch
    return replace(batch, query_start_loc=starts, seq_lens=lens, block_table=table)


def shares_places(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor of these has elements in one place, so that writing one writes another.

    Views that torch makes without as_strided are answered exactly; of others some that interleave count as sharing, too.
    """
    if 0 in sizes:
        return False
    reach = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
