"""Pages that a table does not name, on the portable kernels in Triton's interpreter."""

from __future__ import annotations

import os

import pytest

from hal import Device
from hal.common.backends.registry import find_backend
from hal.common.contract.layouts import latent_layout
from tests.conformance.helpers import missing_pages
from tests.conformance.helpers.missing_pages import MASKS, NOTHING

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)


@pytest.fixture(scope="module")
def backend() -> object:
    """The kernels are the same on every platform."""
    return find_backend("cuda:triton")(Device.from_arch("cuda:sm_90", torch_device="cpu"))


@pytest.mark.parametrize("block", NOTHING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["kv", "latent"])
def test_portable_kernels_see_no_key_of_a_missing_page(backend: object, layout: str, mask: str, block: str) -> None:
    missing_pages.check_attention(backend, layout, MASKS[mask], NOTHING[block])


@pytest.mark.parametrize("block", NOTHING)
def test_portable_kernels_never_choose_a_key_of_a_missing_page(backend: object, block: str) -> None:
    missing_pages.check_choice(backend, NOTHING[block])


@pytest.mark.parametrize("stranger", NOTHING)
def test_portable_kernels_take_no_key_from_a_number_that_is_no_row(backend: object, stranger: str) -> None:
    missing_pages.check_rows(backend, latent_layout(32, 16, "float32"), NOTHING[stranger])
