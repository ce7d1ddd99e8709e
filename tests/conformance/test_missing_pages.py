"""Pages that a table does not name, on the CPU backend."""

from __future__ import annotations

import pytest

from hal import kernels

from . import missing_pages
from .missing_pages import MASKS, NOTHING


@pytest.mark.parametrize("block", NOTHING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["kv", "latent"])
def test_their_keys_are_nobodys(layout: str, mask: str, block: str) -> None:
    missing_pages.check_attention(kernels("cpu"), layout, MASKS[mask], NOTHING[block])


@pytest.mark.parametrize("block", NOTHING)
def test_they_are_never_chosen(block: str) -> None:
    missing_pages.check_choice(kernels("cpu"), NOTHING[block])
