"""Moving a case's tensors to where a backend works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import CompressedBatch, PagedBatch, VarlenBatch
from hal.common.contract.errors import BackendError
from hal.testing.compare import expect_identical

Batch = TypeVar("Batch", PagedBatch, VarlenBatch, CompressedBatch)


def place_of(backend: Backend) -> str:
    """Where the backend's tensors live; BackendError for a device that can hold none."""
    where = backend.device.torch_device
    if where is None:
        raise BackendError(f"{backend.name} on {backend.device}: the device is not here and has no torch_device")
    return where


def move_tensors(batch: Batch, where: str) -> Batch:
    """A call's value with its tensors somewhere else."""
    values: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    moved: dict[str, Any] = {name: each.to(where) for name, each in values.items() if isinstance(each, torch.Tensor)}
    return replace(batch, **moved)


@contextmanager
def untouched(**tensors: torch.Tensor) -> Iterator[None]:
    """A block at whose end every tensor must hold what it held at its start; ConformanceError names the one that does not."""
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    yield
    for name, tensor in tensors.items():
        expect_identical(tensor, before[name], f"the input {name} after the call")


def spread_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with wider strides between rows, as a slice of a fused projection has; NaN lies in between."""
    wide = torch.full((tensor.shape[0], 2, *tensor.shape[1:]), torch.nan, dtype=tensor.dtype, device=tensor.device)
    wide[:, 1] = tensor
    return wide[:, 1]


def transpose_lse(lse: torch.Tensor) -> torch.Tensor:
    """The same [tokens, heads] as a view of [heads, tokens]."""
    return lse.t().contiguous().t()
