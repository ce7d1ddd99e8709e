"""Pages that a table does not name, on the CPU backend."""

from __future__ import annotations

import pytest
import torch

from hal import Device, LayoutError, kernels
from hal.testing import ReferenceBackend
from hal.testing.case import FULL
from hal.testing.storage import poisoned_cache, stored_elements
from hal.testing.suite.layouts import sample_layout

from .helpers import missing_pages
from .helpers.missing_pages import MASKS, NOTHING


@pytest.mark.parametrize("block", NOTHING)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["kv", "latent"])
def test_the_cpu_sees_no_key_of_a_missing_page(layout: str, mask: str, block: str) -> None:
    missing_pages.check_attention(kernels("cpu"), layout, MASKS[mask], NOTHING[block])


@pytest.mark.parametrize("block", NOTHING)
def test_the_cpu_never_chooses_a_key_of_a_missing_page(block: str) -> None:
    missing_pages.check_choice(kernels("cpu"), NOTHING[block])


@pytest.mark.parametrize("stranger", NOTHING)
@pytest.mark.parametrize("name", ["latent", "latent_fp8", "fp8_ds_mla", "compressed"])
def test_the_cpu_and_the_reference_take_no_key_from_a_number_that_is_no_row(name: str, stranger: str) -> None:
    for backend in (kernels("cpu"), ReferenceBackend(Device.from_arch("cpu"))):
        missing_pages.check_rows(backend, sample_layout(name, "float32", FULL), NOTHING[stranger])


@pytest.mark.parametrize("block", NOTHING)
def test_states_of_a_missing_page_join_no_entry(block: str) -> None:
    missing_pages.check_compressing(kernels("cpu"), NOTHING[block])


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("name", ["kv", "kv_fp8", "latent", "latent_fp8", "fp8_ds_mla", "compressed", "indexer_fp8"])
def test_a_slot_past_the_pages_is_refused_before_any_row_is_written(name: str, count: int) -> None:
    layout = sample_layout(name, "float32", FULL)
    scale = torch.ones(layout.scale_shapes[0]) if layout.scale_shapes else None
    cache = poisoned_cache(layout, 4, 16, scale=scale)
    before = stored_elements(cache).clone()
    slots = torch.arange(count)
    slots[-1] = 64
    with pytest.raises(LayoutError, match="slot 64 is none of the cache's: 4 pages of 16 tokens have slots 0 to 63"):
        kernels("cpu").write_cache(cache, slots, *(torch.zeros(count, *part) for part in layout.parts))
    assert torch.equal(stored_elements(cache).view(torch.uint8), before.view(torch.uint8))
