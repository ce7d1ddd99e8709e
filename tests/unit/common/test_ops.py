"""What is not written says so."""

from __future__ import annotations

import pytest

import hal
import hal.ops


def test_an_operator_that_is_not_written_says_so() -> None:
    with pytest.raises(hal.NotBuiltError, match="sparse_mla"):
        hal.ops.sparse_mla  # noqa: B018 - reading it is what raises
