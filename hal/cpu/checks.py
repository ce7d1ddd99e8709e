"""What a call can see wrong with its tensors before it reads or writes through them."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import PagedBatch
from hal.common.contract.errors import BatchError, LayoutError
from hal.common.contract.tensor_faults import ANY, FLOATS, INTEGERS, Dtypes, find_fault

_HERE = torch.device("cpu")


def check_floats(name: str, tensor: torch.Tensor, dims: int) -> None:
    """Raise LayoutError for what is no tensor of floats of so many dimensions on the CPU."""
    if fault := find_fault(name, tensor, FLOATS, (ANY,) * dims, _HERE):
        raise LayoutError(fault)


def check_integers(name: str, tensor: torch.Tensor, dims: int, dtypes: Dtypes = INTEGERS) -> None:
    """Raise BatchError for what is no tensor of these whole numbers of so many dimensions on the CPU."""
    if fault := find_fault(name, tensor, dtypes, (ANY,) * dims, _HERE):
        raise BatchError(fault)


def check_counts(what: str, **counts: int) -> None:
    """Raise BatchError where the counts of the same thing differ."""
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BatchError(f"{what} differ: {given}; they must be as many")


def check_batch(batch: PagedBatch) -> None:
    """Raise BatchError where starts, lengths and table are not of the same requests.

    What they hold is the device's to find out, so it is not looked at: a step with impossible lengths is served, not refused.
    """
    check_integers("batch.block_table", batch.block_table, 2)
    check_integers("batch.seq_lens", batch.seq_lens, 1)
    requests = batch.seq_lens.shape[0]
    check_counts("requests of batch.seq_lens and batch.block_table", seq_lens=requests, block_table=batch.block_table.shape[0])
    check_starts("batch.query_start_loc", batch.query_start_loc, requests)


def check_starts(name: str, starts: torch.Tensor, requests: int) -> None:
    """Raise BatchError where these are not the starts of so many requests and the end of the last."""
    check_integers(name, starts, 1)
    if starts.shape[0] != requests + 1:
        raise BatchError(f"{name} has {starts.shape[0]} entries; {requests} requests need {requests + 1}")
