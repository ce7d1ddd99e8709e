"""Cases of select_topk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect, expect_dtype, expect_identical
from hal.testing.storage import make_generator

from .placement import place_of, untouched

COLUMNS = 41

Fill = Callable[[torch.Generator, int], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkCase:
    """One call of select_topk on rows of one kind of scores, one row per length."""

    note: str
    fill: Fill
    lengths: tuple[int, ...]
    k: int
    width: int
    columns: int = COLUMNS
    deterministic: bool = True

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        order = "" if self.deterministic else "unordered"
        return describe("select_topk", self.note, f"k{self.k}_of_{self.width}", order)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of select_topk that the declaration calls for; ties only where it promises to break them."""
    for width in sizes.topk_widths:
        for k in (width, max(1, width - 3)):
            for deterministic in (True, False) if capabilities.deterministic else (False,):
                for spec in _specs(k, width, deterministic):
                    yield Case(call="select_topk", id=spec.id, check=partial(check_topk, spec))


def _specs(k: int, width: int, deterministic: bool) -> Iterator[TopkCase]:
    lengths = (COLUMNS, 0, -3, 1, k - 1, k, min(k + 1, COLUMNS), COLUMNS - 1)
    fills: dict[str, Fill] = {
        "normal": _normal,
        "nan": _with_nan,
        "infinities": _with_infinities,
        "ties": _ties,
        "signed_zeros": _signed_zeros,
        "all_equal": _all_equal,
        "all_masked": _all_masked,
    }
    for note, fill in fills.items():
        fitting = tuple(min(length, COLUMNS) for length in lengths)
        yield TopkCase(note=note, fill=fill, lengths=fitting, k=k, width=width, deterministic=deterministic)
    plain = TopkCase(note="zero_rows", fill=_normal, lengths=(), k=k, width=width, deterministic=deterministic)
    yield plain
    yield replace(plain, note="no_columns", lengths=(0, -1), columns=0)
    yield replace(plain, note="fewer_columns_than_k", lengths=(3, 2, 0), columns=3)


def check_topk(case: TopkCase, backend: Backend) -> None:
    """Raise ConformanceError unless this holds: the right set to the left, -1 after it; columns past a length are never seen."""
    where = place_of(backend)
    scores = case.fill(make_generator(case.id), len(case.lengths))[:, : case.columns]
    lengths = torch.tensor(case.lengths, dtype=torch.int32)
    for row, length in enumerate(case.lengths):
        scores[row, max(length, 0) :: 2] = torch.nan
        scores[row, max(length, 0) + 1 :: 2] = math.inf
    expected = reference.select_topk(scores, lengths, case.k, case.width)
    given = (scores.to(where), lengths.to(where), case.k, case.width, case.deterministic)
    with untouched(scores=given[0], lengths=given[1]):
        actual = backend.select_topk(*given)
    expect_dtype(actual, torch.int32, "topk")
    expect(actual.shape == expected.shape, f"topk has shape {list(actual.shape)}; expected {list(expected.shape)}")
    for row in range(len(case.lengths)):
        _check_row(case, row, scores[row], actual[row].tolist(), expected[row].tolist())
    if case.deterministic:
        expect_identical(backend.select_topk(*given), actual, "topk of a second run")


def _check_row(case: TopkCase, row: int, scores: torch.Tensor, actual: list[int], expected: list[int]) -> None:
    length, what = case.lengths[row], f"row {row}"
    chosen = [column for column in actual if column != -1]
    wanted = [column for column in expected if column != -1]
    expect(actual[: len(chosen)] == chosen, f"{what}: -1 stands before a column: {actual}")
    if case.deterministic:
        expect(sorted(chosen) == sorted(wanted), f"{what} holds {sorted(chosen)}; expected {sorted(wanted)}")
        return
    expect(len(chosen) == len(wanted) == len(set(chosen)), f"{what} holds {chosen}; expected {len(wanted)} columns")
    expect(all(0 <= column < length for column in chosen), f"{what} holds {chosen}; its length is {length}")
    values, best = ([_value(scores, column) for column in columns] for columns in (chosen, wanted))
    expect(sorted(values) == sorted(best), f"{what} holds scores {sorted(values)}; the best are {sorted(best)}")


def _value(scores: torch.Tensor, column: int) -> float:
    value = float(scores[column]) if 0 <= column < scores.numel() else math.nan
    return -math.inf if math.isnan(value) else value


def _normal(generator: torch.Generator, rows: int) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=generator)


def _with_nan(generator: torch.Generator, rows: int) -> torch.Tensor:
    return _normal(generator, rows).masked_fill(_flips(generator, rows), torch.nan)


def _with_infinities(generator: torch.Generator, rows: int) -> torch.Tensor:
    scores = _normal(generator, rows)
    scores.masked_fill_(_flips(generator, rows), -math.inf)
    return scores.masked_fill_(_flips(generator, rows) & _flips(generator, rows), math.inf)


def _ties(generator: torch.Generator, rows: int) -> torch.Tensor:
    return torch.randint(-2, 3, (rows, COLUMNS), generator=generator).float()


def _signed_zeros(generator: torch.Generator, rows: int) -> torch.Tensor:
    return torch.zeros(rows, COLUMNS).masked_fill(_flips(generator, rows), -0.0)


def _all_equal(generator: torch.Generator, rows: int) -> torch.Tensor:
    del generator
    return torch.ones(rows, COLUMNS)


def _all_masked(generator: torch.Generator, rows: int) -> torch.Tensor:
    del generator
    return torch.full((rows, COLUMNS), -math.inf)


def _flips(generator: torch.Generator, rows: int) -> torch.Tensor:
    return torch.rand(rows, COLUMNS, generator=generator) < 0.5
