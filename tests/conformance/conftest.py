"""Calls on small tensors, some of them in Triton's interpreter."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_calls(single_thread: None, patched_language: None) -> None:
    """One thread, and an interpreter that does not patch its language at every launch."""
