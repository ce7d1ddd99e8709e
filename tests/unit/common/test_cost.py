"""The operation counts of both MLA forms against counting pairs one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.stepping.cost import MLACost, count_mla, count_selected
from hal.config import MLAShape

from .helpers.fakes import MLA

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
SMALL = MLAShape(kv_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4)
LENGTHS = st.tuples(st.integers(0, 12), st.integers(0, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def visible(query_len: int, seq_len: int) -> list[int]:
    """How many keys each new token sees."""
    return [position + 1 for position in range(seq_len - query_len, seq_len)]


@BOUNDED
@given(lengths=LENGTHS, topk=st.integers(1, 50))
def test_selected_pairs_are_those_counted_one_by_one(lengths: tuple[int, int], topk: int) -> None:
    assert count_selected(*lengths, topk) == sum(min(keys, topk) for keys in visible(*lengths))


@BOUNDED
@given(lengths=LENGTHS, topk=st.none() | st.integers(1, 50))
def test_operations_of_both_forms_are_those_counted_one_by_one(lengths: tuple[int, int], topk: int | None) -> None:
    query_len, seq_len = lengths
    seen = [keys if topk is None else min(keys, topk) for keys in visible(query_len, seq_len)]
    lora, nope, rope, v = 5, 3, 2, 4
    cost = count_mla(SMALL, query_len, seq_len, topk)
    # Per head: q through w_uk, out through w_uv, a score over latent and rope, a value over the latent.
    assert cost.absorbed == query_len * (nope * lora + lora * v) + sum(seen) * (lora + rope + lora)
    # Per head: every key through w_uk and w_uv, a score over nope and rope, a value over v; nothing is skipped.
    assert cost.decompressed == seq_len * (lora * nope + lora * v) + sum(visible(query_len, seq_len)) * (nope + rope + v)


@pytest.mark.parametrize(
    ("query_len", "seq_len", "form"),
    [
        (1, 4096, "absorbed"),
        (4, 4096, "absorbed"),
        (4096, 4096, "decompressed"),
        (1024, 2048, "decompressed"),
    ],
    ids=str,
)
def test_dense_decode_is_absorbed_and_long_prefill_is_not(query_len: int, seq_len: int, form: str) -> None:
    assert count_mla(MLA, query_len, seq_len, None).cheaper == form


def test_a_sparse_prefill_over_a_long_context_stays_absorbed() -> None:
    assert count_mla(MLA, 512, 65536, None).cheaper == "decompressed"
    assert count_mla(MLA, 512, 65536, 2048).cheaper == "absorbed"


def test_a_tie_gathers_less() -> None:
    assert MLACost(absorbed=7, decompressed=7).cheaper == "absorbed"
    assert MLACost(absorbed=7, decompressed=6).cheaper == "decompressed"


@BOUNDED
@given(lengths=LENGTHS)
def test_an_indexer_that_leaves_everything_changes_nothing(lengths: tuple[int, int]) -> None:
    assert count_mla(SMALL, *lengths, 1000) == count_mla(SMALL, *lengths, None)
