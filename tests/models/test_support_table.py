"""docs/models.md says what is so: a twentieth of it, another one each day, is worked out again."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from .helpers.support_table import REFUSED, RUNS, TOO_LARGE, judge_all, list_types, read_table

PARTS = 20
PART = int(os.environ.get("HAL_MODELS_PART", datetime.now(UTC).toordinal())) % PARTS
TODAY = list_types()[PART::PARTS]


def test_the_table_has_every_type_of_this_transformers() -> None:
    table = read_table()
    assert list(table) == list_types()
    assert {row.verdict for row in table.values()} <= {RUNS, REFUSED, TOO_LARGE}
    assert all(row.why for row in table.values() if row.verdict != RUNS)


@pytest.mark.parametrize("model_type", TODAY)
def test_a_row_of_the_table_is_so(model_type: str) -> None:
    (found,) = judge_all([model_type])
    row = read_table()[model_type]
    assert found.verdict == row.verdict, f"docs/models.md says {row}; found {found}; run support_table.py anew"
