"""Tensors out of a safetensors file, read rather than mapped: one that is cut short meanwhile is an error, not a dead process."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch

from .checkpoint_header import AGAIN, StoredTensor
from .errors import CheckpointError

SHORT_ROW = 1 << 14
"""Rows shorter than this are read with what is not wanted of them: asking for a stretch of each costs more than copying it."""

BLOCK = 1 << 20
"""Most bytes of short rows that are read at a time; what fits a processor's cache is cheapest to pick from."""


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open file; threads may read from it at the same time."""

    path: Path
    descriptor: int
    buffers: list[torch.Tensor] = field(default_factory=list)
    """Those that no thread uses; made anew for every tensor, they would leave holes between those that stay."""

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

    @contextmanager
    def buffer(self, size: int) -> Iterator[torch.Tensor]:
        """So many bytes for the block's own use; whatever was read before is in them."""
        try:
            buffer = self.buffers.pop()
        except IndexError:
            buffer = torch.empty(0, dtype=torch.uint8)
        if buffer.numel() < size:
            buffer = torch.empty(max(size, BLOCK), dtype=torch.uint8)
        yield buffer[:size]
        self.buffers.append(buffer)

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
        size = dtype.itemsize
        if cut > 0 and shape[cut] * inner * size < SHORT_ROW:
            return self._read_short_rows(bounds, cut, out)
        strides = [math.prod(shape[dim + 1 :]) * size for dim in range(len(shape))]
        start = self.tensor.offset + (bounds[cut][0] * inner * size if cut >= 0 else 0)
        outer = product(*(range(*bounds[dim]) for dim in range(max(cut, 0))))
        offsets = (start + sum(map(operator.mul, place, strides)) for place in outer)
        self.file.read(offsets, out, run * size)
        return out

    def _read_short_rows(self, bounds: list[tuple[int, int]], cut: int, out: torch.Tensor) -> torch.Tensor:
        """Many rows at a time into a buffer, and of each what lies between its bounds from there to `out`."""
        shape, size = self.tensor.shape, out.element_size()
        along, (first, last) = cut - 1, bounds[cut - 1]
        while along and bounds[along] == (0, shape[along]):
            along -= 1
            first, last = (edge * math.prod(shape[along + 1 : cut]) for edge in bounds[along])
        inner = math.prod(shape[cut + 1 :]) * size
        start, stop = (edge * inner for edge in bounds[cut])
        row = shape[cut] * inner
        places = out.view(-1).view(torch.uint8).view(-1, last - first, stop - start)
        strides = [math.prod(shape[dim + 1 :]) * size for dim in range(along)]
        with self.file.buffer(min(last - first, max(1, BLOCK // row)) * row) as buffer:
            for place, outer in zip(places, product(*(range(*bounds[dim]) for dim in range(along))), strict=True):
                offset = self.tensor.offset + sum(map(operator.mul, outer, strides)) + first * row
                for done in range(0, last - first, len(buffer) // row):
                    rows = buffer[: (last - first - done) * row]
                    self.file.read([offset + done * row], rows, len(rows))
                    picked = rows.view(-1, row)[:, start:stop]
                    place[done : done + len(picked)] = picked
        return out
