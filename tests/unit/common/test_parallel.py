"""Which rank stores a position, where, and how many each stores: against counting it out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.parallel import local_length, local_position, owner

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
RANKS, RUNS, LENGTHS = st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 16]), st.integers(0, 200)


def deal(length: int, dcp: int, interleave: int) -> list[list[int]]:
    """Positions dealt to ranks in runs, one run after the other, as cards are."""
    hands: list[list[int]] = [[] for _ in range(dcp)]
    for first in range(0, length, interleave):
        hands[first // interleave % dcp] += range(first, min(first + interleave, length))
    return hands


@BOUNDED
@given(dcp=RANKS, interleave=RUNS, length=LENGTHS)
def test_every_position_is_where_dealing_puts_it(dcp: int, interleave: int, length: int) -> None:
    for rank, hand in enumerate(deal(length, dcp, interleave)):
        parallel = hal.Parallel(dcp=dcp, dcp_rank=rank, interleave=interleave)
        assert [owner(position, parallel) for position in hand] == [rank] * len(hand)
        assert [local_position(position, parallel) for position in hand] == list(range(len(hand)))
        assert local_length(length, parallel) == len(hand)


@BOUNDED
@given(dcp=RANKS, interleave=RUNS, length=LENGTHS)
def test_shares_add_up_to_the_length(dcp: int, interleave: int, length: int) -> None:
    shares = [local_length(length, hal.Parallel(dcp=dcp, dcp_rank=rank, interleave=interleave)) for rank in range(dcp)]
    assert sum(shares) == length
    assert max(shares) - min(shares) <= interleave


@BOUNDED
@given(dcp=RANKS, interleave=RUNS, position=st.integers(0, 10**9))
def test_owner_and_local_position_give_the_position_back(dcp: int, interleave: int, position: int) -> None:
    parallel = hal.Parallel(dcp=dcp, interleave=interleave)
    rank, local = owner(position, parallel), local_position(position, parallel)
    assert local // interleave * dcp * interleave + rank * interleave + local % interleave == position


def test_bounds_are_localised_token_by_token() -> None:
    """Localising the last bound and counting back from it would give 2, 3, 4."""
    parallel = hal.Parallel(dcp=2, dcp_rank=1)
    assert [local_length(bound, parallel) for bound in (8, 9, 10)] == [4, 4, 5]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 0}, ["tp is 0"]),
        ({"dcp": -2}, ["dcp is -2"]),
        ({"interleave": 0}, ["interleave is 0"]),
        ({"tp": True}, ["tp is True"]),
        ({"tp": 2.0}, ["tp is 2.0"]),
        ({"tp": 2, "tp_rank": 2}, ["tp_rank is 2", "0 to 1"]),
        ({"dcp": 4, "dcp_rank": -1}, ["dcp_rank is -1", "0 to 3"]),
        ({"tp_rank": 1}, ["tp_rank is 1"]),
    ],
    ids=str,
)
def test_a_rank_outside_its_group_is_refused(changes: dict, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"expected") as error:
        hal.Parallel(**changes)
    assert all(word in str(error.value) for word in words)
