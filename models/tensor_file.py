"""Tensors out of a safetensors file, read rather than mapped: one that is cut short meanwhile is an error, not a dead process."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from .checkpoint_header import AGAIN, StoredTensor
from .errors import CheckpointError

SHORT_RUN = 1 << 11
"""Stretches shorter than this are read together with what lies between them: asking for each by itself costs more."""

BLOCK = 1 << 22
"""Most bytes that are read at a time for the sake of short stretches."""


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open file; threads may read from it at the same time."""

    path: Path
    descriptor: int

    def get_slice(self, tensor: StoredTensor) -> TensorSlice:
        """One of the file's tensors, of which nothing is read yet."""
        return TensorSlice(self, tensor)

    def read(self, offsets: Iterable[int], into: torch.Tensor, run: int) -> None:
        """Fill a contiguous tensor, `run` bytes from each offset in turn. CheckpointError where the file ends before."""
        view = into.reshape(-1).view(torch.uint8).numpy().data
        for start, offset in zip(range(0, len(view), run), offsets, strict=True):
            count = self._read_once(view[start : start + run], offset)
            while count < run:
                more = self._read_once(view[start + count : start + run], offset + count)
                if not more:
                    raise CheckpointError(
                        f"{self.path} ended at byte {offset + count:,} while it was read, and its header promises "
                        f"{offset + run:,}; something writes to it: {AGAIN}"
                    )
                count += more

    def _read_once(self, view: memoryview, offset: int) -> int:
        try:
            return os.preadv(self.descriptor, [view], offset)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror or error}; {AGAIN}") from error


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """The file within the block. CheckpointError where it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror or error}; {AGAIN}") from error
    try:
        yield TensorFile(path, descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A tensor of a file as transformers' loader and hal's slices ask for it: shape and type at once, bytes when indexed."""

    file: TensorFile
    tensor: StoredTensor

    def get_shape(self) -> list[int]:
        """The whole tensor's shape."""
        return list(self.tensor.shape)

    def get_dtype(self) -> str:
        """The stored type, as safetensors spells it."""
        return self.tensor.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """What lies at plain slices of the leading dimensions, or at `...` all of it, in memory of its own."""
        shape = self.tensor.shape
        slices = () if index is Ellipsis else index if isinstance(index, tuple) else (index,)
        if not all(isinstance(each, slice) and each.step in (None, 1) for each in slices):
            raise TypeError(f"{self.tensor.name}: {index!r} is no plain slice; expected slices without a step")
        bounds = [each.indices(size)[:2] for each, size in zip(slices, shape, strict=False)]
        bounds += [(0, size) for size in shape[len(bounds) :]]
        return self._read([(start, max(start, stop)) for start, stop in bounds])

    def _read(self, bounds: list[tuple[int, int]]) -> torch.Tensor:
        shape, dtype = self.tensor.shape, self.tensor.torch_dtype
        out = torch.empty([stop - start for start, stop in bounds], dtype=dtype)
        if not out.numel():
            return out
        cut = max((dim for dim, pair in enumerate(bounds) if pair != (0, shape[dim])), default=-1)
        inner = math.prod(shape[cut + 1 :])
        run = (bounds[cut][1] - bounds[cut][0]) * inner if cut >= 0 else inner
        if cut > 0 and run * dtype.itemsize < SHORT_RUN:
            return self._read_short_runs(bounds, cut, out)
        size = dtype.itemsize
        strides = [math.prod(shape[dim + 1 :]) * size for dim in range(len(shape))]
        start = self.tensor.offset + (bounds[cut][0] * inner * size if cut >= 0 else 0)
        outer = product(*(range(*bounds[dim]) for dim in range(max(cut, 0))))
        offsets = (start + sum(map(operator.mul, place, strides)) for place in outer)
        self.file.read(offsets, out, run * size)
        return out

    def _read_short_runs(self, bounds: list[tuple[int, int]], cut: int, out: torch.Tensor) -> torch.Tensor:
        row = math.prod(self.tensor.shape[1:]) * out.element_size()
        step = max(1, BLOCK // row)
        first, last = bounds[0]
        for start in range(first, last, step):
            stop = min(last, start + step)
            whole = [(start, stop), *bounds[1:cut], (0, self.tensor.shape[cut]), *bounds[cut + 1 :]]
            part = self._read(whole).narrow(cut, bounds[cut][0], bounds[cut][1] - bounds[cut][0])
            out[start - first : stop - first] = part
        return out
