"""Writing and reading rows of a paged cache."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.layouts.parse import parse_layout

from .cache_form import flatten_cache, part_dtype, read_cache
from .calls import find_calls
from .operands import FLAT, FLOATS, INT32, INT64, check_operands, given
from .registration import define_call, refuse_gradients
from .results import settle


class _Written(NamedTuple):
    storage: torch.Tensor
    scale: torch.Tensor | None
    layout: str
    block_size: int
    slots: torch.Tensor
    parts: list[torch.Tensor]
    backend: str | None


class _Gathered(NamedTuple):
    storage: torch.Tensor
    scale: torch.Tensor | None
    layout: str
    block_size: int
    rows: torch.Tensor
    backend: str | None


def write_cache(cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor, backend: str | None = None) -> None:
    """Write parts [tokens, *part] at slots int64 [tokens], as Backend.write_cache, by the operator; the storage is mutated."""
    _WRITE(*flatten_cache(cache), slots, parts, backend)


def gather_cache(cache: KVCache, rows: torch.Tensor, *, backend: str | None = None) -> tuple[torch.Tensor, ...]:
    """The parts at rows int32 [n] in new tensors, as Backend.gather_cache, by the operator."""
    return tuple(_GATHER(*flatten_cache(cache), rows, backend))


def _check_write(operands: _Written) -> None:
    storage, scale, parts = operands.storage, operands.scale, operands.parts
    floats = ((f"part {number}", part, FLOATS, None) for number, part in enumerate(parts))
    check_operands("write_cache", *given(storage=storage, scale=scale), ("slots", operands.slots, INT64, FLAT), *floats)
    refuse_gradients(storage, *parts)


def _run_write(operands: _Written) -> None:
    _check_write(operands)
    calls = find_calls(operands.backend, operands.storage.device)
    calls.write_cache(read_cache(operands), operands.slots, *operands.parts)


def _check_gather(operands: _Gathered) -> None:
    rows = ("rows", operands.rows, INT32, FLAT)
    check_operands("gather_cache", *given(storage=operands.storage, scale=operands.scale), rows)
    refuse_gradients(operands.storage)


def _run_gather(operands: _Gathered) -> list[torch.Tensor]:
    _check_gather(operands)
    parts = find_calls(operands.backend, operands.storage.device).gather_cache(read_cache(operands), operands.rows)
    dtype = part_dtype(operands.layout, operands.storage)
    # Parts of one row are views of the same rows; an operator's results share no memory.
    return [
        settle(part, dtype) if len(parts) == 1 else part.to(dtype, memory_format=torch.contiguous_format, copy=True)
        for part in parts
    ]


def _trace_gather(operands: _Gathered) -> list[torch.Tensor]:
    _check_gather(operands)
    storage, count = operands.storage, operands.rows.shape[0]
    dtype = part_dtype(operands.layout, storage)
    return [storage.new_empty((count, *part), dtype=dtype) for part in parse_layout(operands.layout).parts]


_WRITE = define_call("write_cache", _Written, "()", _run_write, _check_write, mutated=("storage",))
_GATHER = define_call("gather_cache", _Gathered, "Tensor[]", _run_gather, _trace_gather)
