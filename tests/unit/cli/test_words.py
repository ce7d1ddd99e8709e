"""Sizes and layer ids in words."""

from __future__ import annotations

import pytest

from hal.common.contract.plan_text import format_bytes
from hal.config.runs import format_ids


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0], "0"),
        (range(61), "0-60"),
        ([0, 1, 2, 5], "0-2, 5"),
        ([3, 5, 9], "3, 5, 9"),
        (range(0, 24, 2), "0-22 by 2"),
        ([0, 1, 2, *range(6, 75, 4)], "0-2, 6-74 by 4"),
        ([i for i in range(40) if i % 4], "1-3, 5-7, ..., 37-39"),
    ],
    ids=str,
)
def test_layer_ids_are_told_as_ranges(ids: range | list[int], text: str) -> None:
    assert format_ids(ids) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1152, "1,152 B"), (10240, "10.0 KiB"), (2**30, "1.0 GiB"), (5 * 2**40, "5.0 TiB")],
    ids=str,
)
def test_bytes_are_told_in_fitting_units(count: int, text: str) -> None:
    assert format_bytes(count) == text
