"""Items 1 and 2 as functions: which rank stores a position and where, and what a token's bound leaves there, by counting."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hal import Parallel
from hal.common.contract.parallel import local_length, local_position, owner

from .helpers.dealing import deal
from .helpers.targets import BOUNDED

RANKS, RUNS, LENGTHS = st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 16]), st.integers(0, 200)


def shares(ranks: int, run: int) -> list[Parallel]:
    """Every rank's place in a group."""
    return [Parallel(dcp=ranks, dcp_rank=rank, interleave=run) for rank in range(ranks)]


@BOUNDED
@given(ranks=RANKS, run=RUNS, length=LENGTHS)
def test_positions_and_places_are_one_to_one(ranks: int, run: int, length: int) -> None:
    for parallel, hand in zip(shares(ranks, run), deal(length, ranks, run), strict=True):
        assert [owner(position, parallel) for position in hand] == [parallel.dcp_rank] * len(hand)
        assert [local_position(position, parallel) for position in hand] == list(range(len(hand)))


@BOUNDED
@given(ranks=RANKS, run=RUNS, length=LENGTHS)
def test_tensors_say_what_numbers_do(ranks: int, run: int, length: int) -> None:
    positions = torch.arange(length, dtype=torch.int32)
    for parallel in shares(ranks, run):
        for function in (owner, local_position, local_length):
            assert function(positions, parallel).tolist() == [function(position, parallel) for position in range(length)]


@BOUNDED
@given(ranks=RANKS, run=RUNS, length=LENGTHS)
def test_local_lengths_add_up(ranks: int, run: int, length: int) -> None:
    lengths = [local_length(length, parallel) for parallel in shares(ranks, run)]
    assert lengths == [len(hand) for hand in deal(length, ranks, run)]
    assert sum(lengths) == length


@BOUNDED
@given(ranks=RANKS, run=RUNS, position=st.integers(0, 10**9))
def test_far_positions_come_back(ranks: int, run: int, position: int) -> None:
    parallel = Parallel(dcp=ranks, interleave=run)
    rank, local = owner(position, parallel), local_position(position, parallel)
    assert local // run * ranks * run + rank * run + local % run == position


@BOUNDED
@given(ranks=RANKS, run=RUNS, runs_per_page=st.integers(1, 4), length=LENGTHS, pages=st.randoms(use_true_random=False))
def test_slots_of_pages_and_slots_of_shares_agree(ranks: int, run: int, runs_per_page: int, length: int, pages) -> None:
    """A page holds block_size positions of each rank; a rank's own positions, end to end, fill its rows of those pages."""
    block_size = run * runs_per_page
    table = list(range(length // (block_size * ranks) + 1))
    pages.shuffle(table)
    rows = [(page, offset) for page in table for offset in range(block_size)]
    for parallel, hand in zip(shares(ranks, run), deal(length, ranks, run), strict=True):
        for place, position in enumerate(hand):
            assert rows[place][0] == table[position // (block_size * ranks)]
            local = local_position(position, parallel)
            assert (table[local // block_size], local % block_size) == rows[place]


@BOUNDED
@given(ranks=RANKS, run=RUNS, context=LENGTHS, new=st.integers(1, 12))
def test_bounds_are_localised_token_by_token(ranks: int, run: int, context: int, new: int) -> None:
    """Localising the last bound and counting back from it gives other numbers."""
    bounds = [context + token + 1 for token in range(new)]
    for parallel, hand in zip(shares(ranks, run), deal(context + new, ranks, run), strict=True):
        seen = [sum(position < bound for position in hand) for bound in bounds]
        assert local_length(torch.tensor(bounds), parallel).tolist() == seen


def test_bounds_of_a_rank_are_those_worked_out_by_hand() -> None:
    parallel = Parallel(dcp=2, dcp_rank=1)
    assert [local_length(bound, parallel) for bound in (8, 9, 10)] == [4, 4, 5]
