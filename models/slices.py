"""Which part of a parameter a rank keeps, and what that does to shapes, bytes and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Runs [start, stop) of one dimension of `size` places, in order; all the other dimensions are whole."""

    dim: int
    size: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, dim: int, size: int, indices: Iterable[int]) -> Part:
        """The part that keeps these rising indices, in as few runs as there are."""
        runs: list[tuple[int, int]] = []
        for index in indices:
            if runs and runs[-1][1] == index:
                runs[-1] = (runs[-1][0], index + 1)
            else:
                runs.append((index, index + 1))
        return cls(dim=dim, size=size, runs=tuple(runs))

    @property
    def length(self) -> int:
        """How many of the dimension's places are kept."""
        return sum(stop - start for start, stop in self.runs)

    def indices(self) -> list[int]:
        """The kept places, one by one."""
        return [index for start, stop in self.runs for index in range(start, stop)]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of the part of a parameter that has the shape `whole`."""
        return tuple(self.length if dim == self.dim else size for dim, size in enumerate(whole))

    def whole_shape(self, part: Sequence[int]) -> tuple[int, ...]:
        """The shape of the parameter whose part has the shape `part`."""
        return tuple(self.size if dim == self.dim else size for dim, size in enumerate(part))

    def slices(self, whole: Sequence[int]) -> tuple[tuple[slice, ...], ...]:
        """One index per run into a tensor of the shape `whole`; the pieces end to end along `dim` are the part."""
        before = (slice(None),) * self.dim
        after = (slice(None),) * (len(whole) - self.dim - 1)
        return tuple((*before, slice(start, stop), *after) for start, stop in self.runs)

    def take(self, source: Any, whole: Sequence[int]) -> torch.Tensor:
        """The part of a tensor, or of a safetensors slice of which nothing else is then read; a view where one run is enough."""
        pieces = [source[index] for index in self.slices(whole)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=self.dim)

    def within(self, dim: int, start: int, stop: int) -> Part:
        """What of the part lies in [start, stop), counted from there, along `dim` of the tensor that fills that stretch."""
        runs = ((max(first, start) - start, min(last, stop) - start) for first, last in self.runs)
        return Part(dim=dim, size=stop - start, runs=tuple(run for run in runs if run[0] < run[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """What one rank keeps of every parameter: parts by name; a parameter without one is kept whole.

    zeroed: parameters that are added once, by another rank, and so are zeros on this one.
    """

    parts: Mapping[str, Part] = field(default_factory=dict)
    zeroed: frozenset[str] = frozenset()

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:
        """This rank's shape of a parameter."""
        part = self.parts.get(name)
        return tuple(whole) if part is None else part.shape(whole)

    def share(self, name: str, whole: Sequence[int]) -> float:
        """The share of a parameter's elements that this rank reads: 0 for none, 1 for all."""
        if name in self.zeroed:
            return 0.0
        total = math.prod(whole)
        return math.prod(self.shape(name, whole)) / total if total else 1.0


def block(size: int, rank: int, ranks: int) -> range:
    """The rank's even share of `size` places in a row; the last ranks get less, or nothing, where it does not divide."""
    share = -(-size // ranks)
    return range(min(size, rank * share), min(size, (rank + 1) * share))


def divisors(*sizes: int) -> list[int]:
    """The numbers of ranks, above one, that divide every size."""
    common = math.gcd(*sizes)
    return [ranks for ranks in range(2, common + 1) if common % ranks == 0]
