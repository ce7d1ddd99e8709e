"""Writing and reading rows of a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.layouts.parse import parse_layout

from .cache_form import CACHE, part_dtype, read_cache
from .calls import find_calls
from .operands import FLAT, FLOATS, INT32, INT64, check_operands, given
from .registration import define_operator, refuse_gradients
from .results import settle


def write_cache(cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor, backend: str | None = None) -> None:
    """Write parts [tokens, *part] at slots int64 [tokens], as Backend.write_cache, by the operator; the storage is mutated."""
    _WRITE(cache.storage, cache.scale, cache.layout.description, cache.block_size, slots, parts, backend)


def gather_cache(cache: KVCache, rows: torch.Tensor, *, backend: str | None = None) -> tuple[torch.Tensor, ...]:
    """The parts at rows int32 [n] in new tensors, as Backend.gather_cache, by the operator."""
    return tuple(_GATHER(cache.storage, cache.scale, cache.layout.description, cache.block_size, rows, backend))


def _check_write(storage: torch.Tensor, scale: torch.Tensor | None, slots: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    floats = ((f"part {number}", part, FLOATS, None) for number, part in enumerate(parts))
    check_operands("write_cache", *given(storage=storage, scale=scale), ("slots", slots, INT64, FLAT), *floats)
    refuse_gradients(storage, *parts)


def _run_write(
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    block_size: int,
    slots: torch.Tensor,
    parts: Sequence[torch.Tensor],
    backend: str | None,
) -> None:
    _check_write(storage, scale, slots, parts)
    find_calls(backend, storage.device).write_cache(read_cache(storage, scale, layout, block_size), slots, *parts)


def _trace_write(
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    block_size: int,
    slots: torch.Tensor,
    parts: Sequence[torch.Tensor],
    backend: str | None,
) -> None:
    _check_write(storage, scale, slots, parts)


def _check_gather(storage: torch.Tensor, scale: torch.Tensor | None, rows: torch.Tensor) -> None:
    check_operands("gather_cache", *given(storage=storage, scale=scale), ("rows", rows, INT32, FLAT))
    refuse_gradients(storage)


def _run_gather(
    storage: torch.Tensor, scale: torch.Tensor | None, layout: str, block_size: int, rows: torch.Tensor, backend: str | None
) -> list[torch.Tensor]:
    _check_gather(storage, scale, rows)
    parts = find_calls(backend, storage.device).gather_cache(read_cache(storage, scale, layout, block_size), rows)
    dtype = part_dtype(layout, storage)
    # Parts of one row are views of the same rows; an operator's results share no memory.
    return [
        settle(part, dtype) if len(parts) == 1 else part.to(dtype, memory_format=torch.contiguous_format, copy=True)
        for part in parts
    ]


def _trace_gather(
    storage: torch.Tensor, scale: torch.Tensor | None, layout: str, block_size: int, rows: torch.Tensor, backend: str | None
) -> list[torch.Tensor]:
    _check_gather(storage, scale, rows)
    form = parse_layout(layout)
    dtype = torch.float32 if form.is_quantised else storage.dtype
    return [storage.new_empty((rows.shape[0], *part), dtype=dtype) for part in form.parts]


_WRITE = define_operator(
    "write_cache",
    "(Tensor(a!) storage, Tensor? scale, str layout, SymInt block_size, Tensor slots, Tensor[] parts, str? backend) -> ()",
    _run_write,
    _trace_write,
)
_GATHER = define_operator("gather_cache", f"({CACHE}, Tensor rows, str? backend) -> Tensor[]", _run_gather, _trace_gather)
