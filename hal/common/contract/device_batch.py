"""A step as an engine already has it on the device, and its metadata without a copy to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import gt
from typing import Any

import numpy as np
import torch

from .errors import BatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """One step in device tensors; Batch.from_device makes it and says what each field holds."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: tuple[torch.Tensor, ...]
    slot_mapping: tuple[torch.Tensor, ...] | None
    num_reqs: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    num_decodes: int | None
    query_lens: tuple[int, ...] | None
    seq_lens_upper: tuple[int, ...] | None

    def count_decodes(self, decode_len: int) -> int:
        """How many of the first requests are decodes, as far as the host knows."""
        if self.num_decodes is not None:
            return self.num_decodes
        if self.max_query_len <= decode_len:
            return self.num_reqs
        if self.query_lens is None:
            return 0
        return next((i for i, length in enumerate(self.query_lens) if length > decode_len), self.num_reqs)

    def count_decode_tokens(self, num_decodes: int, decode_len: int) -> int:
        """The new tokens of the first num_decodes requests; BatchError where the host cannot know."""
        if num_decodes == self.num_reqs:
            return self.num_tokens
        if self.query_lens is not None:
            return sum(self.query_lens[:num_decodes])
        if num_decodes > self.num_tokens:
            raise BatchError(f"num_decodes is {num_decodes} and num_tokens {self.num_tokens}; every decode has a token")
        if decode_len == 1 or not num_decodes:
            return num_decodes
        raise BatchError(
            f"{num_decodes} decodes of up to {decode_len} tokens come before prefills, and only the device knows how many "
            "tokens they have; pass query_lens"
        )


def make_device_batch(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor | Sequence[torch.Tensor],
    slot_mapping: torch.Tensor | Sequence[torch.Tensor] | None,
    sizes: Mapping[str, int],
    num_decodes: int | None,
    query_lens: Sequence[int] | None,
    seq_lens_upper: Sequence[int] | None,
) -> DeviceBatch:
    """The batch, its shapes and types checked; BatchError names what does not fit. No value is read from the device."""
    tables = _as_tuple(block_tables)
    slots = None if slot_mapping is None else _as_tuple(slot_mapping)
    sizes = {name: _as_int(name, value) for name, value in sizes.items()}
    num_decodes = None if num_decodes is None else _as_int("num_decodes", num_decodes)
    requests = seq_lens.shape[0] if isinstance(seq_lens, torch.Tensor) and seq_lens.dim() == 1 else -1
    _check("seq_lens", seq_lens, (requests,), torch.int32)
    _check("query_start_loc", query_start_loc, (requests + 1,), torch.int32)
    for table in tables:
        width = table.shape[-1] if isinstance(table, torch.Tensor) and table.dim() else -1
        _check("block_tables", table, (requests, width), torch.int32)
    for mapping in slots or ():
        _check("slot_mapping", mapping, (sizes["num_tokens"],), torch.int64)
    if slots is not None and len(slots) != len(tables):
        raise BatchError(f"{len(tables)} block tables and {len(slots)} slot mappings; expected as many, or no slot mapping")
    devices = {tensor.device for tensor in (query_start_loc, seq_lens, *tables, *(slots or ()))}
    if len(devices) > 1:
        raise BatchError(f"the batch's tensors lie on {sorted(map(str, devices))}; put them on one device")
    if num_decodes is not None and not 0 <= num_decodes <= requests:
        raise BatchError(f"num_decodes is {num_decodes}; expected 0 to {requests}")
    queries = None if query_lens is None else _as_ints("query_lens", query_lens, requests)
    longest = None if seq_lens_upper is None else _as_ints("seq_lens_upper", seq_lens_upper, requests)
    _check_host_lengths(sizes, queries, longest)
    return DeviceBatch(
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=tables,
        slot_mapping=slots,
        num_reqs=requests,
        num_decodes=num_decodes,
        query_lens=queries,
        seq_lens_upper=longest,
        **sizes,
    )


def _check_host_lengths(
    sizes: Mapping[str, int], query_lens: tuple[int, ...] | None, seq_lens_upper: tuple[int, ...] | None
) -> None:
    """Raise BatchError where what the host says of the lengths does not add up."""
    for name, value in sizes.items():
        if value < 0:
            raise BatchError(f"{name} is {value}; expected at least 0")
    tokens, longest_query, longest = (sizes[name] for name in ("num_tokens", "max_query_len", "max_seq_len"))
    if query_lens:
        total, least, most = sum(query_lens), min(query_lens), max(query_lens)
        if least < 0 or total > tokens or most > longest_query:
            raise BatchError(
                f"query_lens are {least} to {most}, {total} together; expected 0 to max_query_len = {longest_query}, and "
                f"together at most num_tokens = {tokens}"
            )
    if seq_lens_upper and (min(seq_lens_upper) < 0 or max(seq_lens_upper) > longest):
        least, most = min(seq_lens_upper), max(seq_lens_upper)
        raise BatchError(f"seq_lens_upper are {least} to {most}; expected 0 to max_seq_len = {longest}")
    if query_lens and seq_lens_upper and any(map(gt, query_lens, seq_lens_upper)):
        request = list(map(gt, query_lens, seq_lens_upper)).index(True)
        raise BatchError(
            f"request {request} has {query_lens[request]} new tokens and seq_lens_upper {seq_lens_upper[request]}, which "
            "includes them"
        )


def _as_tuple(tensors: Any) -> tuple[torch.Tensor, ...]:
    return tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)


def _as_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise BatchError(f"{name} is {value!r}; expected a whole number that the host knows")
    return int(value)


def _as_ints(name: str, values: Sequence[int], requests: int) -> tuple[int, ...]:
    if not isinstance(values, (Sequence, np.ndarray)):
        raise BatchError(f"{name} is a {type(values).__name__}; expected a sequence of whole numbers, one per request")
    if len(values) != requests:
        raise BatchError(f"{name} has {len(values)} entries; the step has {requests} requests")
    given = tuple(values.tolist() if isinstance(values, np.ndarray) else values)
    # Of hundreds in a step, one that is not whole makes their sum so.
    try:
        is_plain = type(sum(given)) is int
    except TypeError:
        is_plain = False
    if not is_plain:
        for value in given:
            if not isinstance(value, (int, np.integer)):
                raise BatchError(f"{name} holds {value!r}; expected whole numbers that the host knows")
        # numpy adds its numbers in as few bits as they have.
        given = tuple(map(int, given))
    return given


def _check(name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.dtype is dtype and tuple(tensor.shape) == shape:
        return
    wanted = f"{dtype} [{', '.join('n' if size < 0 else str(size) for size in shape)}]"
    if not isinstance(tensor, torch.Tensor):
        raise BatchError(f"{name} is a {type(tensor).__name__}; expected a tensor, {wanted}")
    raise BatchError(f"{name} is {tensor.dtype} with shape {list(tensor.shape)}; expected {wanted}")
