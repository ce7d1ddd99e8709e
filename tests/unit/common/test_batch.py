"""What a batch refuses by itself, and how it tells decodes from prefills."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal

TABLE = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "words"),
    [
        ([1, 3], [4, 2], ["request 1", "query_len 3", "seq_len 2"]),
        ([1, -1], [4, 2], ["request 1", "query_len -1"]),
        ([1, 0], [4, -2], ["request 1", "seq_len -2"]),
        ([1, 1], [4], ["2 query_lens", "1 seq_lens"]),
        ([1.0, 1.0], [4, 4], ["query_lens", "float64"]),
        ([1, 1], ["4", "4"], ["seq_lens", "whole numbers"]),
        ([True, True], [4, 4], ["query_lens", "bool"]),
        ([[1], [1]], [4, 4], ["query_lens", "[2, 1]"]),
    ],
    ids=["short", "negative_query", "negative_seq", "count", "float", "text", "bool", "shape"],
)
def test_lengths_that_contradict_each_other_are_refused(query_lens, seq_lens, words: list[str]) -> None:
    with pytest.raises(hal.BatchError) as error:
        hal.Batch(query_lens, seq_lens, np.array(TABLE))
    assert [word for word in words if word not in str(error.value)] == []
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.zeros((3, 2), np.int32), ["[3, 2]", "[2, pages]"]),
        (np.zeros((2, 2), np.float32), ["float32"]),
        (np.zeros(4, np.int32), ["[4]"]),
        (np.zeros((2, 2, 2), np.int32), ["[2, 2, 2]"]),
        ((np.zeros((2, 2), np.int32), np.zeros((1, 2), np.int32)), ["[1, 2]"]),
    ],
    ids=["requests", "float", "flat", "deep", "second"],
)
def test_tables_that_do_not_fit_the_requests(table, words: list[str]) -> None:
    with pytest.raises(hal.BatchError) as error:
        hal.Batch([1, 1], [4, 4], table)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("value", [2**31, 2**32 + 1, -(2**32) + 1], ids=str)
@pytest.mark.parametrize("where", ["query_lens", "seq_lens", "block_table"])
def test_numbers_that_would_wrap_around_are_refused(where: str, value: int) -> None:
    values = {"query_lens": [1, 1], "seq_lens": [4, 4], "block_table": [[0, 1], [2, 3]]}
    if where == "block_table":
        values[where][0][0] = value
    else:
        values[where][0] = value
    with pytest.raises(hal.BatchError, match=str(value)):
        hal.Batch(np.array(values["query_lens"]), np.array(values["seq_lens"]), np.array(values["block_table"]))


def test_flags_must_be_as_many_as_the_requests() -> None:
    with pytest.raises(hal.BatchError, match=r"is_prefilling.*\[1\].*bool \[2\]"):
        hal.Batch([1, 1], [4, 4], TABLE, is_prefilling=[True])


@pytest.mark.parametrize("table", [[], np.zeros((0, 4), np.int32), ()], ids=["list", "array", "tuple"])
def test_a_batch_without_requests_is_one(table) -> None:
    batch = hal.Batch([], [], table)
    assert (batch.num_reqs, batch.num_tokens) == (0, 0)
    assert batch.order().tolist() == []


def test_requests_without_a_page_need_no_table() -> None:
    assert hal.Batch([0, 0], [0, 0], []).num_reqs == 2


def test_one_table_or_one_per_group() -> None:
    one = np.array(TABLE)
    assert len(hal.Batch([1, 1], [4, 4], TABLE).block_tables) == 1
    assert len(hal.Batch([1, 1], [4, 4], one).block_tables) == 1
    assert len(hal.Batch([1, 1], [4, 4], (one, one + 4)).block_tables) == 2
    assert len(hal.Batch([1, 1], [4, 4], [one, one, one]).block_tables) == 3


REQUESTS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(requests=REQUESTS, decode_len=st.integers(1, 4), flagged=st.booleans())
def test_order_puts_decodes_first_and_keeps_each_part_in_order(requests, decode_len: int, flagged: bool) -> None:
    queries, flags = [query for query, _ in requests], [flag for _, flag in requests]
    table = np.zeros((len(queries), 1), np.int32)
    batch = hal.Batch(queries, queries, table, is_prefilling=flags if flagged else None)
    decode = [query <= decode_len and not (flagged and flag) for query, flag in requests]
    expected = [i for i, is_decode in enumerate(decode) if is_decode] + [i for i, is_decode in enumerate(decode) if not is_decode]
    assert batch.order(decode_len).tolist() == expected
    assert batch.decodes(decode_len).tolist() == decode


def test_the_engines_arrays_are_left_alone() -> None:
    queries, lengths, table = np.array([1, 2], np.int32), np.array([4, 4], np.int32), np.array(TABLE, np.int32)
    batch = hal.Batch(queries, lengths, table)
    batch.order()
    assert (queries.tolist(), lengths.tolist(), table.tolist()) == ([1, 2], [4, 4], TABLE)
