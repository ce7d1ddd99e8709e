"""A step as the host sees it, from host arrays or from a device batch whose values it may look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hal.common.contract.batch import Batch
from hal.common.contract.device_batch import DeviceBatch

if TYPE_CHECKING:
    import torch

Ints = npt.NDArray[Any]


class HostStep(NamedTuple):
    """A step whose values the host can see, with its order (None where decodes come first) and its padded sizes.

    max_seq_len: the longest request, or no less. starts: where each request's tokens begin, and where the last one's end.
    block_tables, and slots where an engine brings
    its own: one for all cache groups, or one per group. is_single: one new token for each request.
    """

    query_lens: Ints
    seq_lens: Ints
    max_seq_len: int
    starts: Ints
    block_tables: tuple[Ints, ...]
    slots: tuple[Ints, ...] | None
    num_reqs: int
    num_tokens: int
    is_single: bool
    order: Ints | None
    num_decodes: int
    padded_reqs: int
    padded_tokens: int

    def count_decode_tokens(self) -> int:
        """New tokens of the decodes, which come first in the execution order."""
        if self.is_single:
            return self.num_decodes
        if self.order is None:
            return int(self.starts[self.num_decodes])
        return int(self.query_lens[self.order[: self.num_decodes]].sum())


def arrange(batch: Batch, decode_len: int) -> HostStep:
    """A host batch in its execution order."""
    order, num_decodes, num_reqs = None, batch.num_reqs, batch.num_reqs
    if not batch.is_single or batch.is_prefilling is not None:
        decodes = batch.decodes(decode_len)
        num_decodes = int(np.count_nonzero(decodes))
        if np.count_nonzero(decodes[:num_decodes]) != num_decodes:
            order = np.argsort(~decodes, kind="stable")
    if batch.is_single:
        starts = np.arange(num_reqs + 1, dtype=np.int32)
    else:
        starts = np.zeros(num_reqs + 1, np.int32)
        np.add.accumulate(batch.query_lens, out=starts[1:])
    return HostStep(
        query_lens=batch.query_lens,
        seq_lens=batch.seq_lens,
        max_seq_len=int(np.maximum.reduce(batch.seq_lens)) if num_reqs else 0,
        starts=starts,
        block_tables=batch.block_tables,
        slots=None,
        num_reqs=num_reqs,
        num_tokens=batch.num_tokens,
        is_single=batch.is_single,
        order=order,
        num_decodes=num_decodes,
        padded_reqs=batch.num_reqs if batch.num_reqs_padded is None else batch.num_reqs_padded,
        padded_tokens=batch.num_tokens if batch.num_tokens_padded is None else batch.num_tokens_padded,
    )


def see_device_batch(batch: DeviceBatch, num_decodes: int) -> HostStep:
    """A device batch as the host sees it, decodes first: CPU tensors where they lie, others copied when the device is done."""
    starts, num_reqs = _to_host(batch.query_start_loc), batch.num_reqs
    query_lens = starts[1:] - starts[:-1]
    is_single = batch.max_query_len == 1 and np.count_nonzero(query_lens == 1) == num_reqs and starts[0] == 0
    return HostStep(
        query_lens=query_lens,
        seq_lens=_to_host(batch.seq_lens),
        max_seq_len=batch.max_seq_len,
        starts=starts,
        block_tables=tuple(map(_to_host, batch.block_tables)),
        slots=None if batch.slot_mapping is None else tuple(map(_to_host, batch.slot_mapping)),
        num_reqs=num_reqs,
        num_tokens=int(starts[-1]),
        is_single=is_single,
        order=None,
        num_decodes=num_decodes,
        padded_reqs=num_reqs,
        padded_tokens=batch.num_tokens,
    )


def _to_host(tensor: torch.Tensor) -> Ints:
    return tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()
