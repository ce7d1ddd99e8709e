"""What this machine can do, measured in the same run as everything that is compared with it."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """This machine's fp32 matrix-product rate in GF/s and its read rate in GB/s."""

    sgemm_gflops: float
    read_gbytes: float

    def __str__(self) -> str:
        threads = torch.get_num_threads()
        return f"this machine: sgemm {self.sgemm_gflops:.0f} GF/s, reads {self.read_gbytes:.1f} GB/s, {threads} threads"


def measure_rates() -> Rates:
    """The rates now, best of five: what a kernel on this machine could reach."""
    size = 2048
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    product = best_time(lambda: torch.mm(left, right, out=out), rounds=5)
    block = torch.randn(1 << 26)
    read = best_time(block.sum, rounds=5)
    return Rates(sgemm_gflops=2 * size**3 / product / 1e9, read_gbytes=block.numel() * 4 / read / 1e9)


def best_time(work: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the fastest of some rounds, after one that is not counted."""
    return min(times(work, rounds))


def median_time(work: Callable[[], object], rounds: int = 5) -> float:
    """Median seconds of some rounds, after one that is not counted."""
    return statistics.median(times(work, rounds))


def times(work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each round, after one that is not counted."""
    work()
    return [time_once(work) for _ in range(rounds)]


def time_once(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_memory_bytes() -> int:
    """The most resident memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
