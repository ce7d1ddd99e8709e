"""How ranks share heads (tensor parallel) and tokens (decode context parallel)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import InputError
from .limits import check_positive_int

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    Positions = TypeVar("Positions", int, torch.Tensor, npt.NDArray[Any])
else:
    Positions = TypeVar("Positions")


@dataclass(frozen=True, slots=True)
class Parallel:
    """One rank's place: tp divides heads, dcp divides tokens in runs of `interleave`. ValueError for a rank outside its group."""

    tp: int = 1
    tp_rank: int = 0
    dcp: int = 1
    dcp_rank: int = 0
    interleave: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "dcp", "interleave"):
            check_positive_int(name, getattr(self, name))
        for rank, size in (("tp_rank", self.tp), ("dcp_rank", self.dcp)):
            value = getattr(self, rank)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
                raise InputError(f"{rank} is {value!r}; expected 0 to {size - 1}")


def owner(position: Positions, parallel: Parallel) -> Positions:
    """The DCP rank that stores a position."""
    rank: Positions = position // parallel.interleave % parallel.dcp
    return rank


def local_position(position: Positions, parallel: Parallel) -> Positions:
    """A position's index in its owner's share."""
    run = parallel.interleave
    index: Positions = position // (parallel.dcp * run) * run + position % run
    return index


def global_position(index: Positions, parallel: Parallel) -> Positions:
    """The position that lies at an index of this rank's share; the way back from local_position."""
    run = parallel.interleave
    position: Positions = index // run * (parallel.dcp * run) + parallel.dcp_rank * run + index % run
    return position


def local_length(length: Positions, parallel: Parallel) -> Positions:
    """How many of the first `length` positions this rank stores; over all ranks they add up to length."""
    run = parallel.interleave
    base = length // run // parallel.dcp * run
    rest: Any = length - base * parallel.dcp - parallel.dcp_rank * run
    clipped = rest.clip(0, run) if hasattr(rest, "clip") else max(0, min(rest, run))
    return base + clipped  # type: ignore[no-any-return]


def longest_share(length: int, parallel: Parallel) -> int:
    """The most that any rank stores of the first `length` positions; the first rank's share is never the shorter one."""
    return local_length(length, replace(parallel, dcp_rank=0))
