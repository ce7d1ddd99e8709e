"""AITER's kernel for pages multiplies what no query sees by zero: its adapter keeps it from where that could be NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.errors import BackendError
from hal.common.contract.layouts import attention_layout
from hal.common.vendor import KernelFacts, VendorBackend
from hal.testing import Case, ConformanceError, conformance_cases

from .helpers.cells import CELLS, PROFILE, UNIFIED

CELL = next(cell for cell in CELLS if UNIFIED in cell.held)
ADAPTER = CELL.adapter(replace(UNIFIED, changes={**UNIFIED.changes, "block_size_multiple": 16, "window": True}))


def case_of(words: str, page: int) -> Case:
    cases = conformance_cases(ADAPTER, replace(PROFILE, block_sizes=(page,)), calls={"paged_attention"})
    return next(case for case in cases if words in case.id)


def check(case: Case) -> None:
    with CELL.installed():
        case.check(ADAPTER(CELL.device))


@pytest.mark.parametrize("page", [16, 32, 64])
def test_pages_that_are_one_tile_are_refused_since_their_unused_rows_would_be_read(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of("unused_rows-unseen", page)
    with pytest.raises(BackendError, match="reads pages of multiples of 128"):
        check(case)
    monkeypatch.setattr(KernelFacts, "takes_block_size", lambda _self, _size: True)
    with pytest.raises(ConformanceError, match="nan"):
        check(case)


@pytest.mark.parametrize("page", [128, 256])
def test_pages_of_several_tiles_are_not_read_past_the_end(page: int) -> None:
    check(case_of("unused_rows-unseen", page))


@pytest.mark.parametrize("words", ["later_tokens-unseen", "behind_window-unseen"])
def test_keys_that_share_a_tile_and_not_a_query_are_the_portable_kernels(words: str) -> None:
    with pytest.raises(BackendError, match="to another"):
        check(case_of(words, 128))


def test_the_published_wheel_reads_past_the_end_at_any_page() -> None:
    kernel = next(kernel for kernel in ADAPTER.kernels if kernel.name == "unified")
    assert issubclass(ADAPTER, VendorBackend)
    assert kernel.minimum == "0.1.21"


def run(v_elsewhere: float) -> torch.Tensor:
    """One decode of 5 keys through the stand-in on a page of 128; every other value is the given one."""
    storage = torch.ones(2, 128, 128, dtype=torch.bfloat16)
    storage[1, 5:] = v_elsewhere
    cache = KVCache(storage, attention_layout(1, 64, 64, "bfloat16"), 128, 128)
    ints = [torch.tensor(values, dtype=torch.int32) for values in ([0, 1], [5], [[1]])]
    with CELL.installed():
        backend = ADAPTER(CELL.device)
        return backend.paged_attention(storage[:1, :1, :64], cache, PagedBatch(*ints, 1, 5), softmax_scale=0.1)[0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_decode_does_not_change_by_a_bit(value: float) -> None:
    assert torch.equal(run(value), run(0.0))
