"""Cases of expand_pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect, expect_dtype
from hal.testing.storage import make_generator

from .placement import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCase:
    """One call of expand_pools on rows of pool ids, some of them past the last full pool; one row per length.

    repeats: ids occur several times in a row, else once.
    """

    note: str
    pool: int
    columns: int
    lengths: tuple[int, ...]
    repeats: bool = False

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        return describe("expand_pools", f"pool{self.pool}", f"{self.columns}pools", self.note)

    @property
    def width(self) -> int:
        """Room for every chosen pool and an open tail."""
        return -(-(self.columns * self.pool + self.pool - 1) // 16) * 16


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of expand_pools that the declaration calls for."""
    for pool in (2, 3, 4, 8):
        if pool > capabilities.max_index_pool:
            return
        for columns in (1, sizes.profile.topk):
            lengths = (0, -2, 1, pool - 1, pool, pool + 1, 7 * pool, 7 * pool + 1, 8 * pool - 1)
            for spec in (
                PoolCase(note="", pool=pool, columns=columns, lengths=lengths),
                PoolCase(note="zero_rows", pool=pool, columns=columns, lengths=()),
                PoolCase(note="repeats", pool=pool, columns=columns, lengths=lengths, repeats=True),
            ):
                yield Case(call="expand_pools", id=spec.id, check=partial(check_pools, spec))


def check_pools(case: PoolCase, backend: Backend) -> None:
    """Raise ConformanceError unless this holds: the right set to the left, -1 after it."""
    generator, where = make_generator(case.id), place_of(backend)
    topk = torch.full((len(case.lengths), case.columns), -1, dtype=torch.int32)
    for row, length in enumerate(case.lengths):
        chosen = torch.randperm(max(length, 0) // case.pool + 2, generator=generator)[: max(case.columns - row % 2, 1)]
        topk[row, : chosen.numel()] = chosen.to(torch.int32)
        if case.repeats:
            topk[row, chosen.numel() // 2 :] = topk[row, 0]
    lengths = torch.tensor(case.lengths, dtype=torch.int32)
    expected = reference.expand_pools(topk, lengths, case.pool, case.width)
    actual = backend.expand_pools(topk.to(where), lengths.to(where), case.pool, case.width)
    expect_dtype(actual, torch.int32, "tokens")
    expect(actual.shape == expected.shape, f"tokens have shape {list(actual.shape)}; expected {list(expected.shape)}")
    for row, (found, wanted) in enumerate(zip(actual.tolist(), expected.tolist(), strict=True)):
        count = case.width - wanted.count(-1)
        expect(
            sorted(found[:count]) == sorted(wanted[:count]) and set(found[count:]) <= {-1},
            f"row {row} (length {case.lengths[row]}) holds {found}; expected the set {sorted(wanted[:count])}, then -1",
        )
