"""Slots and lengths of groups in which tokens share rows, from the definition, in numpy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.fill_rows import fill_rows, row_regions

BLOCK_SIZE = 16


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    pages=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    position=st.integers(0, 40),
    count=st.integers(0, 20),
    dead=st.sets(st.integers(0, 20)),
    shared=st.sampled_from([2, 4, 8, 16]),
)
def test_a_row_is_written_by_its_last_token(kind: str, pages, position: int, count: int, dead: set[int], shared: int) -> None:
    positions = [p for p in range(position, position + count) if p // BLOCK_SIZE < len(pages)]
    slots = [-1 if index in dead else pages[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for index, p in enumerate(positions)]
    tokens = len(positions)
    arrays = {
        "slots": np.array([[*slots, -1, 7]] * 2, np.int64),
        "seq_lens": np.array([position + tokens, 3], np.int32),
        "key_bounds": np.array([p + 1 for p in positions] + [99], np.int32),
    }
    for name, (shape, dtype) in row_regions((1, shared), 2, tokens + 1).items():
        arrays[name] = np.zeros(shape, dtype)
    held = arrays if kind == "numpy" else {name: torch.from_numpy(array) for name, array in arrays.items()}
    fill_rows((1, shared), held, True, 2, tokens, tokens + 1)
    rows_per_page = BLOCK_SIZE // shared
    expected = [
        pages[p // BLOCK_SIZE] * rows_per_page + p // shared % rows_per_page
        if index not in dead and (p + 1) % shared == 0
        else -1
        for index, p in enumerate(positions)
    ]
    assert arrays["slots"][0].tolist() == [*slots, -1, 7]
    assert arrays["slots"][1].tolist() == [*expected, -1, 7]
    assert arrays["row_lens"][1].tolist() == [(position + tokens) // shared, 3 // shared]
    assert arrays["row_bounds"][1][:tokens].tolist() == [(p + 1) // shared for p in positions]


def test_groups_of_one_token_per_row_need_nothing_more() -> None:
    assert row_regions((1, 1), 4, 8) == {}
    assert row_regions((), 4, 8) == {}
