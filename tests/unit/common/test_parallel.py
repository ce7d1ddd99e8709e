"""A rank's place in its group. The maths of shares is held to counting in tests/differential/test_shares.py."""

from __future__ import annotations

import pytest

import hal


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
        ({"tp": 2, "tp_rank": True}, ["tp_rank is True", "0 to 1"]),
        ({"dcp": 2, "dcp_rank": 0.5}, ["dcp_rank is 0.5", "0 to 1"]),
    ],
    ids=str,
)
def test_a_rank_outside_its_group_is_refused(changes: dict, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"expected") as error:
        hal.Parallel(**changes)
    assert all(word in str(error.value) for word in words)
