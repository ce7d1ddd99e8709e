"""What an engine says of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import BatchError

if TYPE_CHECKING:
    import torch

    from .device_batch import DeviceBatch

IntArray = npt.NDArray[np.int32]

_INT32 = np.iinfo(np.int32)


class Batch:
    """One step of an engine: host lengths [requests] and block tables int32 [requests, pages], one or one per cache group.

    seq_lens include the new tokens. One table serves all groups where page ids mean the same page in each; it has to be one
    per group where each has a pool of its own. A table column past a request's last page is never read, nor is one that none
    of its new tokens sees in any layer that reads the table, wholly behind their windows or before their chunks, where -1 may
    stand; every other has to name a page. Over DCP ranks a column is one page on
    each of them, plan.tokens_per_page tokens, and every rank is given the whole requests. Any order of requests is right;
    with decodes first nothing has to be moved. BatchError for lengths that contradict each other.

    num_reqs: requests in the step, those without a new token included; num_tokens: new tokens; is_single: every request has
    exactly one.
    """

    __slots__ = (
        "block_tables",
        "is_prefilling",
        "is_single",
        "num_reqs",
        "num_reqs_padded",
        "num_tokens",
        "num_tokens_padded",
        "query_lens",
        "seq_lens",
    )

    def __init__(
        self,
        query_lens: Sequence[int] | npt.NDArray[Any],
        seq_lens: Sequence[int] | npt.NDArray[Any],
        block_tables: Any,
        *,
        num_tokens_padded: int | None = None,
        num_reqs_padded: int | None = None,
        is_prefilling: Sequence[bool] | None = None,
    ) -> None:
        self.query_lens = _host_ints("query_lens", query_lens)
        self.seq_lens = _host_ints("seq_lens", seq_lens)
        self.num_reqs = len(self.query_lens)
        self.num_tokens = int(self.query_lens.sum())
        self.is_single = self.num_tokens == self.num_reqs and bool((self.query_lens == 1).all())
        tables = block_tables if isinstance(block_tables, (tuple, list)) and _are_tables(block_tables) else (block_tables,)
        self.block_tables = tuple(_host_table(table, self.num_reqs) for table in tables)
        self.num_tokens_padded = num_tokens_padded
        self.num_reqs_padded = num_reqs_padded
        self.is_prefilling = None if is_prefilling is None else _host_flags(is_prefilling, self.num_reqs)
        for name in ("num_tokens_padded", "num_reqs_padded"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
                raise BatchError(f"{name} is {value!r}; expected a whole number")
        self._check_lengths()

    def order(self, decode_len: int = 1) -> npt.NDArray[np.intp]:
        """The permutation that puts decodes (at most decode_len new tokens, not prefilling) first, each part in its order."""
        return np.argsort(~self.decodes(decode_len), kind="stable")

    def decodes(self, decode_len: int = 1) -> npt.NDArray[np.bool_]:
        """Which requests are decodes."""
        short: npt.NDArray[np.bool_] = self.query_lens <= decode_len
        return short if self.is_prefilling is None else short & ~self.is_prefilling

    @staticmethod
    def from_device(
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_tables: torch.Tensor | Sequence[torch.Tensor],
        slot_mapping: torch.Tensor | Sequence[torch.Tensor] | None = None,
        *,
        num_tokens: int,
        max_query_len: int,
        max_seq_len: int,
        num_decodes: int | None = None,
        query_lens: Sequence[int] | None = None,
        seq_lens_upper: Sequence[int] | None = None,
    ) -> DeviceBatch:
        """A step from device tensors as an engine already has them; nothing is copied to the host.

        query_start_loc int32 [requests + 1], seq_lens int32 [requests], block_tables int32 [requests, pages] (one, or one
        per cache group), slot_mapping int64 [num_tokens] likewise, computed where it is not given; one that is given to a DCP
        rank is -1 for what others own, and a padded token's counts as -1. Decodes come first, one new token each unless
        query_lens says otherwise.
        What the host knows: num_tokens (padded ones included), upper bounds of the lengths, num_decodes; query_lens and
        seq_lens_upper, exact for prefills, let the index scores be cut finely and MLA prefills be decompressed.
        The CPU may read the tables where they lie until the next build(). BatchError for wrong shapes, types or counts. What
        is wrong in the values is made harmless and counted (Attention.lost_tokens, .lost_pages): a request that misses a page
        in a column that its new tokens see, or whose length cannot be, sees no key in the step.
        """
        from .device_batch import make_device_batch

        sizes = {"num_tokens": num_tokens, "max_query_len": max_query_len, "max_seq_len": max_seq_len}
        return make_device_batch(
            query_start_loc, seq_lens, block_tables, slot_mapping, sizes, num_decodes, query_lens, seq_lens_upper
        )

    def _check_lengths(self) -> None:
        if len(self.seq_lens) != self.num_reqs:
            raise BatchError(f"{self.num_reqs} query_lens and {len(self.seq_lens)} seq_lens; they must be as many")
        if not self.num_reqs:
            return
        wrong = np.flatnonzero((self.query_lens < 0) | (self.seq_lens < self.query_lens))
        if wrong.size:
            i = int(wrong[0])
            raise BatchError(
                f"request {i} has query_len {self.query_lens[i]} and seq_len {self.seq_lens[i]}; "
                "query_len must be at least 0 and seq_len, which includes the new tokens, at least query_len"
            )


def _are_tables(tables: Sequence[Any]) -> bool:
    return bool(tables) and all(getattr(table, "ndim", None) == 2 for table in tables)


def _as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """The values on the host; BatchError where they are no array, such as rows of unequal length or another device's tensor."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BatchError(
            f"{name} is no array on the host: {error}; give rows of one length, and device tensors to Batch.from_device"
        ) from error


def _host_flags(values: Any, num_reqs: int) -> npt.NDArray[np.bool_]:
    array = _as_array("is_prefilling", values)
    if array.shape != (num_reqs,) or (array.size and array.dtype != np.bool_):
        raise BatchError(
            f"is_prefilling is {array.dtype} with shape {list(array.shape)}; expected bool [{num_reqs}], one per request"
        )
    return array.astype(np.bool_, copy=False)


def _host_ints(name: str, values: Any) -> IntArray:
    array = _as_array(name, values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise BatchError(f"{name} must be whole numbers in one dimension, got {array.dtype} with shape {list(array.shape)}")
    return _narrow(name, array)


def _host_table(table: Any, num_reqs: int) -> IntArray:
    array = _as_array("a block table", table)
    if array.size == 0:
        width = array.shape[1] if array.ndim == 2 else 0
        array = np.zeros((num_reqs, width), np.int32) if array.ndim < 2 or array.shape[0] == num_reqs else array
    if array.ndim != 2 or array.shape[0] != num_reqs or array.dtype.kind not in "iu":
        raise BatchError(
            f"a block table is {array.dtype} with shape {list(array.shape)}; expected whole numbers [{num_reqs}, pages]"
        )
    return _narrow("a block table", array)


def _narrow(name: str, array: npt.NDArray[Any]) -> IntArray:
    if array.dtype == np.int32:
        return array
    outside = (array < _INT32.min) | (array > _INT32.max)
    if outside.any():
        raise BatchError(f"{name} holds {array[outside][0]}, which 32 bits cannot; expected {_INT32.min} to {_INT32.max}")
    return array.astype(np.int32)
