"""Calls of the CPU backend whose tensors do not go together: a typed error that names them, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hal.common.contract.call_values import VarlenBatch
from hal.testing.storage import stored_elements

from .helpers.bad_calls import BATCH, CASES, CPU, HEADS, RECORDS, attend, choose, ints, merge, score, sparse, varlen


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_refuses_what_does_not_go_together(name: str) -> None:
    call, kind, words = CASES[name]
    before = [stored_elements(cache).clone() for cache in (HEADS, RECORDS)]
    with pytest.raises(kind, match=words):
        call()
    assert all(torch.equal(stored_elements(cache), old) for cache, old in zip((HEADS, RECORDS), before, strict=True))


@pytest.mark.parametrize("call", [attend, varlen, score, choose, sparse, merge], ids=lambda call: call.__name__)
def test_what_goes_together_is_served(call: Callable[[], Any]) -> None:
    """Otherwise the calls above might be refused for another reason."""
    call()


def test_queries_of_no_request_see_no_key() -> None:
    """Rows before the first request's and past the last's, and requests that begin past all rows."""
    for starts in ([1, 2, 3], [0, 1, 2], [2, 3, 9], [3, 4, 5], [0, 3, 4]):
        out = torch.full((3, 4, 8), torch.nan)
        CPU.paged_attention(torch.ones(3, 4, 8), HEADS, replace(BATCH, query_start_loc=ints(*starts)), softmax_scale=1.0, out=out)
        assert not out.any()
    ones = torch.ones(3, 2, 8)
    lone = VarlenBatch(q_start_loc=ints(1, 2), k_start_loc=ints(0, 3), max_query_len=1, max_seq_len=3)
    out, lse = CPU.varlen_attention(ones, ones, ones, lone, softmax_scale=1.0, need_lse=True)
    assert out[1].eq(1).all()
    assert not out[[0, 2]].any()
    assert lse is not None
    assert lse[[0, 2]].isneginf().all()


@pytest.mark.parametrize("request_id", [-1, 1, 2**31 - 1])
def test_tokens_of_no_request_have_no_row(request_id: int) -> None:
    rows, valid = choose(ints([0, 1], [0, 1]), ints(request_id, 0))
    assert rows.tolist() == [[-1, -1], [0, 1]]
    assert valid.tolist() == [0, 2]
