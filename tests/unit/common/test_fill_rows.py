"""Slots and lengths of groups in which tokens share rows, from the definition, in numpy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.planning.row_rules import RowRule, row_regions
from hal.common.stepping.fill_rows import fill_rows

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
    rules = (RowRule(), RowRule(tokens_per_row=shared))
    arrays = {
        "slots": np.array([[*slots, -1, 7]] * 2, np.int64),
        "seq_lens": np.array([position + tokens, 3], np.int32),
        "key_bounds": np.array([p + 1 for p in positions] + [99], np.int32),
    }
    for name, (shape, dtype) in row_regions(rules, 2, tokens + 1).items():
        arrays[name] = np.zeros(shape, dtype)
    held = arrays if kind == "numpy" else {name: torch.from_numpy(array) for name, array in arrays.items()}
    fill_rows(rules, held, BLOCK_SIZE, True, 2, tokens + 1)
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
    assert row_regions((RowRule(), RowRule(rows_kept=3)), 4, 8) == {}
    assert row_regions((), 4, 8) == {}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=3),
    dead=st.sets(st.integers(0, 60), max_size=4),
    kept=st.integers(1, BLOCK_SIZE - 1),
)
def test_a_page_keeps_its_last_tokens(kind: str, lengths, dead: set[int], kept: int) -> None:
    """Writing every token's row in order of time gives what writing the slots at once gives."""
    tokens = [(request, past + i) for request, (past, new) in enumerate(lengths) for i in range(new)]
    pages = np.random.default_rng(len(tokens)).permutation(30)[: 6 * len(lengths)].reshape(len(lengths), 6)
    slots = [
        -1 if index in dead else pages[request, p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for index, (request, p) in enumerate(tokens)
    ]
    arrays = {
        "slots": np.array([[*slots, -1]], np.int64),
        "seq_lens": np.array([past + new for past, new in lengths], np.int32),
        "positions": np.array([*(p for _, p in tokens), 0], np.int64),
        "req_id": np.array([*(request for request, _ in tokens), 0], np.int32),
    }
    held = arrays if kind == "numpy" else {name: torch.from_numpy(array) for name, array in arrays.items()}
    fill_rows((RowRule(rows_kept=kept),), held, BLOCK_SIZE, True, len(lengths), len(tokens) + 1)
    found = arrays["slots"][0].tolist()
    in_order = {slot // BLOCK_SIZE * kept + slot % BLOCK_SIZE % kept: index for index, slot in enumerate(slots) if slot >= 0}
    at_once = {slot: index for index, slot in enumerate(found) if slot >= 0}
    assert len(at_once) == sum(slot >= 0 for slot in found)
    assert all(in_order[slot] == index for slot, index in at_once.items())
    if not dead:
        assert at_once == in_order
