"""Batches that the plan or the pool does not allow: the values in the error, and nothing written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers.engine import Engine, snapshot, unchanged
from .helpers.gqa_run import run_step
from .helpers.shapes import gqa, model

LIMITS = hal.Limits(32, 3, 20, block_size=4)
GOOD = ([1, 1], [9, 5], [[0, 1, 2], [3, 4, 0]])


@pytest.fixture
def engine() -> Engine:
    """Two requests of 8 and 4 tokens in a pool of 10 pages."""
    engine = Engine(model(gqa(0), gqa(1, window=4)), limits=LIMITS, num_blocks=10)
    run_step(engine, [(0, 8), (1, 4)])
    return engine


def with_table(*rows: list[int]) -> tuple:
    return GOOD[0], GOOD[1], np.array(rows)


CASES: dict[str, tuple[tuple, dict[str, Any], list[str]]] = {
    "too_many_requests": (([1] * 4, [1] * 4, [[0]] * 4), {}, ["4 requests", "max_num_seqs = 3"]),
    "too_many_tokens": (([11, 10], [11, 10], [[0, 1, 2], [3, 4, 5]]), {}, ["21 new tokens", "max_num_batched_tokens = 20"]),
    "too_long": (([1, 1], [9, 33], [list(range(9))] * 2), {}, ["request 1", "seq_len 33", "max_model_len = 32"]),
    "narrow_table": (([1, 1], [9, 5], [[0, 1], [3, 4]]), {}, ["2 columns", "request 0", "3 pages of 4"]),
    "no_table": (([1, 1], [9, 5], []), {}, ["0 columns", "request 0"]),
    "block_past_the_pool": (with_table([0, 1, 2], [3, 10, 0]), {}, ["request 1", "block 10", "column 1", "0 to 9"]),
    "negative_block": (with_table([0, -1, 2], [3, 4, 0]), {}, ["request 0", "block -1", "column 1"]),
    "negative_last_block": (with_table([0, 1, -1], [3, 4, -1]), {}, ["request 0", "block -1", "column 2"]),
    "wrong_number_of_tables": ((GOOD[0], GOOD[1], [np.array(GOOD[2])] * 3), {}, ["3 block tables", "2"]),
    "second_table": ((GOOD[0], GOOD[1], [np.array(GOOD[2]), np.array([[0, 1, 2], [3, 99, 0]])]), {}, ["block 99"]),
    "padding": (GOOD, {"num_tokens_padded": 21}, ["num_tokens_padded is 21", "20"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_batch_is_refused_with_its_values(engine: Engine, name: str) -> None:
    arguments, options, words = CASES[name]
    with pytest.raises(hal.BatchError) as error:
        engine.attention.build(hal.Batch(*arguments, **options))
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("name", CASES)
def test_a_refused_batch_writes_nothing(engine: Engine, name: str) -> None:
    """Not the caches, not the pool, and not the metadata of the step before, which stays good."""
    batch = engine.schedule([(0, 1), (1, 2)])
    metadata = engine.attention.build(batch)
    tensors = [metadata.query_start_loc, metadata.seq_lens, metadata.positions, metadata.slot_mapping, metadata.block_table]
    copies, before, free = [tensor.clone() for tensor in tensors], snapshot(engine.attention), engine.attention.pages.num_free
    arguments, options, _ = CASES[name]
    with pytest.raises(hal.BatchError):
        engine.attention.build(hal.Batch(*arguments, **options))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))
    assert unchanged(engine.attention, before)
    assert engine.attention.pages.num_free == free
    engine.attention.attend(0, engine.random(3, 4, 8), engine.random(3, 2, 8), engine.random(3, 2, 6), metadata)


META = torch.zeros(2, 3, dtype=torch.int32, device="meta")
NO_BATCHES: dict[str, tuple[Any, list[str]]] = {
    "rows_of_unequal_length": (lambda: hal.Batch([1, 1], [9, 5], [[0, 1, 2], [3, 4]]), ["block table", "one length"]),
    "lengths_in_rows": (lambda: hal.Batch([[1], [1, 1]], [9, 5], GOOD[2]), ["query_lens"]),
    "a_table_elsewhere": (lambda: hal.Batch(*GOOD[:2], META), ["block table", "meta", "Batch.from_device"]),
    "flags_in_rows": (lambda: hal.Batch(*GOOD, is_prefilling=[[True], [False]]), ["is_prefilling", "[2, 1]", "bool [2]"]),
    "flags_of_words": (lambda: hal.Batch(*GOOD, is_prefilling=["no", "yes"]), ["is_prefilling", "bool [2]"]),
    "nothing": (lambda: None, ["NoneType", "Batch"]),
    "a_list": (lambda: list(GOOD), ["list", "Batch"]),
    "no_lengths": (lambda: on_device(seq_lens=None), ["seq_lens", "NoneType", "int32"]),
    "host_lengths": (lambda: on_device(seq_lens=np.array([9, 5], np.int32)), ["seq_lens", "ndarray", "int32"]),
    "a_number_as_table": (lambda: on_device(block_tables=torch.tensor(1, dtype=torch.int32)), ["block_tables", "[]", "[2, n]"]),
    "no_table": (lambda: on_device(block_tables=None), ["block_tables", "NoneType"]),
    "everything_elsewhere": (lambda: on_device(device="meta"), ["meta", "cpu"]),
    "half_a_token": (lambda: on_device(num_tokens=2.5), ["num_tokens is 2.5"]),
    "tokens_on_the_device": (lambda: on_device(num_tokens=torch.tensor(2)), ["num_tokens is tensor(2)", "host"]),
    "a_flag_as_length": (lambda: on_device(max_query_len=True), ["max_query_len is True"]),
    "a_word_as_length": (lambda: on_device(max_seq_len="9"), ["max_seq_len is '9'"]),
    "half_a_decode": (lambda: on_device(num_decodes=1.5), ["num_decodes is 1.5"]),
    "half_lengths": (lambda: on_device(query_lens=[0.5, 1]), ["query_lens holds 0.5"]),
    "one_length_for_all": (lambda: on_device(query_lens=1), ["query_lens is a int", "one per request"]),
    "words_as_lengths": (lambda: on_device(query_lens=["a", "b"]), ["query_lens holds 'a'"]),
    "an_unknown_length": (lambda: on_device(seq_lens_upper=[9, None]), ["seq_lens_upper holds None"]),
    "rows_of_lengths": (lambda: on_device(seq_lens_upper=[[9], [5]]), ["seq_lens_upper holds [9]"]),
    "lengths_on_the_device": (lambda: on_device(seq_lens_upper=torch.tensor([9, 5])), ["seq_lens_upper is a Tensor"]),
}


def on_device(*, device: str = "cpu", **changes: Any) -> Any:
    """GOOD in device tensors, changed."""
    columns = {"seq_lens": GOOD[1], "block_tables": GOOD[2], "query_start_loc": [0, 1, 2]}
    tensors = {name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in columns.items()}
    return hal.Batch.from_device(**(tensors | {"num_tokens": 2, "max_query_len": 1, "max_seq_len": 9} | changes))


@pytest.mark.parametrize("name", NO_BATCHES)
def test_what_is_no_batch_is_refused_by_its_type(engine: Engine, name: str) -> None:
    make, words = NO_BATCHES[name]
    before = snapshot(engine.attention)
    with pytest.raises(hal.BatchError) as error:
        engine.attention.build(make())
    assert [word for word in words if word not in str(error.value)] == []
    assert unchanged(engine.attention, before)


def test_numpy_counts_are_counts(engine: Engine) -> None:
    batch = on_device(num_tokens=np.int64(2), query_lens=np.array([1, 1]), seq_lens_upper=np.array([9, 5]))
    assert engine.attention.build(batch).slot_mapping.tolist() == [8, 16]


@pytest.mark.parametrize("junk", [-1, 10, 2**31 - 1], ids=str)
def test_what_no_page_fills_is_never_looked_at(engine: Engine, junk: int) -> None:
    metadata = engine.attention.build(hal.Batch([1, 1], [9, 5], [[0, 1, 2, junk], [3, 4, junk, junk]]))
    assert metadata.slot_mapping.tolist() == [8, 16]


def test_a_table_wider_than_the_plans_is_fine(engine: Engine) -> None:
    table = np.zeros((2, 200), np.int32)
    table[:, :3] = [[0, 1, 2], [3, 4, 0]]
    assert engine.attention.build(hal.Batch([1, 1], [9, 5], table)).slot_mapping.tolist() == [8, 16]


def test_a_full_batch_is_fine() -> None:
    engine = Engine(model(gqa()), limits=LIMITS, num_blocks=24)
    run_step(engine, [(0, 20)])
    run_step(engine, [(0, 12), (1, 4), (2, 4)])
    assert engine.attention.pages.num_free == 24 - 8 - 1 - 1


def test_a_pool_that_runs_out_says_so_and_the_engine_goes_on() -> None:
    engine = Engine(model(gqa()), limits=LIMITS, num_blocks=3)
    run_step(engine, [(0, 8)])
    with pytest.raises(hal.CapacityError, match=r"2 pages.*1 of 3"):
        engine.attention.pages.allocate(2)
    run_step(engine, [(0, 1)])
