"""Item 9: the best columns of a row, by sorting it: higher score first, then the lower id."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from hal.testing import FULL
from hal.testing.case import fit_sizes
from hal.testing.suite.placement import place_of

from .helpers.choices import best
from .helpers.targets import ON_KERNELS, ints, open_target

COLUMNS = 9
SCORES = st.sampled_from([-math.inf, math.inf, math.nan, -60.0, -1.5, -0.0, 0.0, 0.25, 2.0]) | st.floats(width=32)


@ON_KERNELS
@given(
    rows=st.lists(st.tuples(st.lists(SCORES, min_size=COLUMNS, max_size=COLUMNS), st.integers(-2, COLUMNS)), max_size=4),
    k=st.integers(1, 12),
)
def test_ties_and_nan_and_short_rows(target, rows: list[tuple[list[float], int]], k: int) -> None:
    backend = open_target(target, "select_topk")
    if not target.backend.capabilities.deterministic:
        return
    width = fit_sizes(target.backend.capabilities, FULL).topk_widths[1]
    where = place_of(backend)
    scores = torch.tensor([values for values, _ in rows], dtype=torch.float32, device=where).reshape(len(rows), COLUMNS)
    chosen = backend.select_topk(scores, ints([length for _, length in rows], where), k, width, True)
    for (values, length), found in zip(rows, chosen.tolist(), strict=True):
        expected = best(values, length, k)
        assert sorted(found[: len(expected)]) == expected
        assert set(found[len(expected) :]) <= {-1}
        assert len(found) == width
