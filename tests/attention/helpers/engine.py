"""A small engine: requests that grow step by step, their pages, and everything they were ever given, for oracles to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

import hal
from hal.config import ModelShape

Step = Sequence[tuple[int, int]]
JUNK = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Running:
    """One request: how long it is, its pages, and per layer what was cached of it, in order.

    missing: positions that nobody sees, since the table of a step names no page for them.
    """

    length: int = 0
    pages: list[int] = field(default_factory=list)
    missing: frozenset[int] = frozenset()
    cached: dict[Any, list[torch.Tensor]] = field(default_factory=dict)

    def history(self, key: Any) -> torch.Tensor:
        """Everything cached under a key, float64, one row per position."""
        return torch.cat(self.cached[key]).double()


@cache
def this_cpu() -> hal.Device:
    """The CPU, looked for once: hundreds of engines run on it."""
    return hal.detect()[-1]


@cache
def this_software() -> hal.Software:
    """What is installed, looked for once."""
    return hal.installed()


class Engine:
    """Plans, opens and steps. Tables have junk in every column that no page fills, and a few columns more than needed."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        dtype: str = "float32",
        block_size: int = 4,
        num_blocks: Any = 64,
        seed: int = 0,
        limits: hal.Limits | None = None,
        **plan: Any,
    ) -> None:
        self.shape = shape
        self.dtype: torch.dtype = getattr(torch, dtype)
        limits = limits or hal.Limits(64, 6, 48, block_size=block_size)
        self.plan = hal.plan(shape, this_cpu(), limits=limits, dtype=dtype, **({"software": this_software()} | plan))
        self.attention = self.open(num_blocks)
        self.generator = torch.Generator().manual_seed(seed)
        self.requests: dict[int, Running] = {}
        self.extra_columns = 2

    def open(self, num_blocks: Any) -> Any:
        """What the steps run on."""
        return self.plan.open(num_blocks)

    def allocate(self, count: int) -> list[int]:
        """Pages for a request that grows."""
        return self.attention.pages.allocate(count)

    def random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal values in the engine's type."""
        return (torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale).to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers in the engine's type, so that products of them are exact."""
        return torch.randint(low, high + 1, shape, generator=self.generator).to(self.dtype)

    def schedule(self, step: Step, **batch: Any) -> hal.Batch:
        """The batch of a step [(request, new tokens)], its requests grown and given pages."""
        members = []
        for name, new in step:
            running = self.requests.setdefault(name, Running())
            running.length += new
            needed = -(-running.length // self.plan.tokens_per_page) - len(running.pages)
            running.pages += self.allocate(needed)
            members.append(running)
        width = max((len(running.pages) for running in members), default=0) + self.extra_columns
        table = np.full((len(members), width), JUNK, np.int32)
        for row, running in zip(table, members, strict=True):
            row[: len(running.pages)] = running.pages
        return hal.Batch([new for _, new in step], [running.length for running in members], table, **batch)

    def finish(self, name: int) -> None:
        """A request leaves and its pages are free for others."""
        running = self.requests.pop(name, None)
        if running is not None:
            self.attention.pages.free(running.pages)

    def record(self, key: Any, step: Step, rows: torch.Tensor) -> None:
        """Remember rows [tokens, ...] as the newest of each request."""
        pieces = rows[: sum(new for _, new in step)].split([new for _, new in step])
        for (name, _), piece in zip(step, pieces, strict=True):
            self.requests[name].cached.setdefault(key, []).append(piece)

    def tokens(self, step: Step) -> list[tuple[int, int]]:
        """(request, position) of each token of a step just scheduled."""
        return [
            (name, position)
            for name, new in step
            for position in range(self.requests[name].length - new, self.requests[name].length)
        ]


def snapshot(attention: hal.Attention) -> dict[Any, torch.Tensor]:
    """A copy of every cache."""
    return {key: cache.storage.clone() for key, cache in attention.caches.items()}


def unchanged(attention: hal.Attention, before: dict[Any, torch.Tensor]) -> bool:
    """Whether every cache still holds what a snapshot has."""
    return all(torch.equal(cache.storage, before[key]) for key, cache in attention.caches.items())
