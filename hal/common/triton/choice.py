"""An explicit choice of keys as attention over contiguous keys takes it: a bit for each key of each query's request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_numbers
from hal.common.contract.errors import BatchError

from .launch import Launch

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import VarlenBatch

_MAX_COLUMNS = 1024
BITS = 32
"""Keys in one element of a choice."""


def mark_launch(selected: Any, q_start_loc: Any, k_start_loc: Any, first_key: Any, bits: Any, max_query_len: int) -> Launch:
    """selected int32 [tokens, width] into zeroed bits int32 [tokens, words]."""
    width = selected.shape[1]
    return Launch(
        kernel="choice:mark_keys",
        grid=(max_query_len, first_key.shape[0]),
        tensors={"selected": selected},
        tables={"q_start_loc": q_start_loc, "k_start_loc": k_start_loc, "first_key": first_key, "bits": bits},
        strides={"selected_token": selected.stride(0)},
        numbers={"bits_row": bits.stride(0), "width": width},
        constants={"BLOCK": min(_MAX_COLUMNS, 1 << (max(width, 16) - 1).bit_length())},
        num_warps=4,
    )


def mark_choice(run: Callable[[Launch], None], batch: VarlenBatch, tokens: int) -> torch.Tensor | None:
    """The bits int32 [tokens, words] of a call's choice, None where it has none; the batch's starts are dense.

    BatchError where tokens or requests are not as many.
    """
    requests, first_key = batch.q_start_loc.shape[0] - 1, batch.first_key
    if first_key is not None:
        first_key = dense_numbers("first_key", first_key)
        if first_key.shape[0] != requests:
            raise BatchError(f"first_key is of {first_key.shape[0]} requests; the call has {requests}")
    if batch.selected is None:
        return None
    import torch

    first_key = batch.q_start_loc.new_zeros(requests) if first_key is None else first_key
    selected = dense_numbers("selected", batch.selected, 2)
    if selected.shape[0] != tokens:
        raise BatchError(f"selected is of {selected.shape[0]} tokens; the call has {tokens}")
    bits = torch.zeros(tokens, max(1, -(-batch.max_seq_len // BITS)), dtype=torch.int32, device=selected.device)
    if selected.shape[1]:
        run(mark_launch(selected, batch.q_start_loc, batch.k_start_loc, first_key, bits, batch.max_query_len))
    return bits
