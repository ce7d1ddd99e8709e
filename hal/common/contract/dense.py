"""Tensors as kernels need them that read memory from an address on, and whether a tensor can be written at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .call_values import PagedBatch
from .errors import BatchError, LayoutError

if TYPE_CHECKING:
    import torch

_MOST = 2**31 - 1


def has_dense_rows(tensor: torch.Tensor) -> bool:
    """Whether the elements of the last dimension follow each other, as every kernel takes them and writes them."""
    return tensor.stride(-1) == 1 or tensor.shape[-1] <= 1


def dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where its last dimension is not dense."""
    return tensor if has_dense_rows(tensor) else tensor.contiguous()


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

    from .tensor_faults import ANY, INTEGERS, find_fault

    if fault := find_fault(name, tensor, INTEGERS, (ANY,) * dims):
        raise BatchError(fault)
    return tensor.clamp(-_MOST - 1, _MOST).to(torch.int32)


def dense_batch(batch: PagedBatch) -> PagedBatch:
    """The batch with starts, lengths and table as dense_numbers; itself where they are, as every batch of the builder's is.

    BatchError where they are not of the same requests.

    Made anew for every call and not once: what an engine keeps such views of changes from step to step.
    """
    starts = dense_numbers("batch.query_start_loc", batch.query_start_loc)
    lens = dense_numbers("batch.seq_lens", batch.seq_lens)
    table = dense_numbers("batch.block_table", batch.block_table, 2)
    requests = lens.shape[0]
    if table.shape[0] != requests or starts.shape[0] != requests + 1:
        raise BatchError(
            f"requests differ: batch.seq_lens has {requests}, batch.block_table {table.shape[0]}, and batch.query_start_loc "
            f"{starts.shape[0]} entries; {requests} requests need {requests + 1}"
        )
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


def refuse_shared(out: torch.Tensor | None, **inputs: torch.Tensor) -> None:
    """Raise LayoutError where an out has elements that share places, with each other or with an input's."""
    if out is None or not out.numel():
        return
    if not out.is_contiguous() and shares_places(out.shape, out.stride()):
        raise LayoutError(f"out has strides {list(out.stride())} for {list(out.shape)}; every element needs a place of its own")
    begin = out.data_ptr()
    end = begin + _span(out)
    for name, tensor in inputs.items():
        start = tensor.data_ptr()
        if start < end and (start >= begin or begin < start + _span(tensor)) and not _are_columns(out, tensor):
            raise LayoutError(
                f"out {list(out.shape)} lies in memory of {name} {list(tensor.shape)}, which the call still reads; "
                "give it memory of its own"
            )


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first to behind its last."""
    return tensor.nbytes if tensor.is_contiguous() else _reach(tensor.shape, tensor.stride()) * tensor.element_size()


def _reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _are_columns(out: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether both are different columns of the same rows, as parts of one fused projection are."""
    size = out.element_size()
    row = out.stride(0) * size
    if not row or row != tensor.stride(0) * tensor.element_size():
        return False
    widths = [_reach(one.shape[1:], one.stride()[1:]) * one.element_size() for one in (out, tensor)]
    offset = (tensor.data_ptr() - out.data_ptr()) % row
    return widths[0] <= offset and offset + widths[1] <= row
