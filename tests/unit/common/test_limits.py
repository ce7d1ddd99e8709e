"""What a request and its limits refuse before anything is asked of a backend."""

from __future__ import annotations

import pytest

import hal

from .helpers.fakes import ask, gqa_layer, mla_layer, sparse_layer

FIELDS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_logits_bytes")
GOOD = {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32}


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8", None], ids=repr)
@pytest.mark.parametrize("name", FIELDS)
def test_a_bound_that_is_no_count_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        hal.Limits(**(GOOD | {name: value}))


@pytest.mark.parametrize("value", [0, -16, True, 16.0], ids=repr)
def test_a_page_size_that_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"block_size is {value!r}"):
        hal.Limits(**GOOD, block_size=value)
    with pytest.raises(ValueError, match=f"block_size is {value!r}"):
        ask(block_size=value)


def test_limits_take_positions_and_leave_the_page_size_open() -> None:
    limits = hal.Limits(128, 4, 32)
    assert (limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens) == (128, 4, 32)
    assert limits.block_size is None
    assert limits.max_logits_bytes == 512 * 2**20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graphs": "sometimes"}, "'sometimes'.*uniform_single"),
        ({"num_spec_tokens": -1}, "num_spec_tokens is -1"),
        ({"dtype": "bfloat61"}, "bfloat61.*bfloat16"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_refuses_values_outside_its_lists(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(**changes)


@pytest.mark.parametrize(
    ("layer", "family"),
    [(gqa_layer(), "attention"), (mla_layer(), "mla"), (sparse_layer(), "sparse_mla"), (sparse_layer(owns=False), "sparse_mla")],
    ids=["gqa", "mla", "sparse", "shared"],
)
def test_family_is_read_off_the_structure(layer, family: str) -> None:
    assert ask(layer).family == family


def test_heads_on_rank_are_divided() -> None:
    assert ask(gqa_layer(num_heads=32), parallel=hal.Parallel(tp=4)).heads_on_rank == 8


def test_equal_requests_are_equal_and_hashable() -> None:
    assert ask() == ask()
    assert hash(ask()) == hash(ask())
    assert ask() != ask(need_lse=True)
