"""Where new tokens may not be written: to pages that others hold, and where another token of the step is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hal

from .helpers.shapes import gqa, model

PAGE, BLOCKS = 4, 16


@pytest.fixture
def attention() -> hal.Attention:
    plan = hal.plan(model(gqa()), "cpu", limits=hal.Limits(64, 4, 64, block_size=PAGE), dtype="float32")
    return plan.open(BLOCKS)


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def on_device(queries: list[int], lengths: list[int], table: list[list[int]], slots: list[int] | None = None) -> Any:
    starts = ints([0, *queries]).cumsum(0).int()
    given = None if slots is None else torch.tensor(slots)
    sizes = {"num_tokens": sum(queries), "max_query_len": max(queries), "max_seq_len": max(lengths)}
    return hal.Batch.from_device(starts, ints(lengths), ints(table), given, **sizes, num_decodes=0)


# What is given, and the slots that are left: the first of two keeps its place.
DOUBLE: dict[str, tuple[tuple[list[int], list[int], list[list[int]]], list[int]]] = {
    "two_decodes": (([1, 1], [1, 1], [[0], [0]]), [0, -1]),
    "a_prefill_over_a_decode": (([1, 3], [2, 3], [[5], [5]]), [21, 20, -1, 22]),
    "two_pages_of_one_request": (([7], [7], [[3, 3]]), [12, 13, 14, 15, -1, -1, -1]),
    "requests_without_tokens_between": (([1, 0, 1], [6, 4, 2], [[1, 2], [2, 2], [2, 9]]), [9, -1]),
}


@pytest.mark.parametrize("name", DOUBLE)
def test_two_tokens_of_a_step_in_one_place_are_refused_on_the_host_and_counted_on_the_device(
    attention: hal.Attention, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, left = DOUBLE[name]
    with pytest.raises(hal.BatchError, match=r"would write position .* where position .* is written"):
        attention.build(hal.Batch(*given))
    assert attention.build(on_device(*given)).slot_mapping.tolist() == left
    assert attention.lost_tokens == left.count(-1)
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match="would write position"):
        attention.build(on_device(*given))


def test_one_page_at_different_rows_is_no_double_write(attention: hal.Attention) -> None:
    assert attention.build(hal.Batch([1, 1], [2, 1], [[0], [0]])).slot_mapping.tolist() == [1, 0]
    assert attention.build(on_device([1, 1], [2, 1], [[0], [0]])).slot_mapping.tolist() == [1, 0]
    assert attention.lost_tokens == 0


def test_slots_of_an_engines_own_that_repeat_are_counted(attention: hal.Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = on_device([1, 1, 1], [1, 1, 1], [[0], [1], [2]], [-1, 9, 9])
    assert attention.build(batch).slot_mapping.tolist() == [-1, 9, -1]
    assert attention.lost_tokens == 1
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match="tokens 1 and 2 both have slot 9"):
        attention.build(batch)


@pytest.mark.parametrize("slots", [None, [1, 5]], ids=["computed", "given"])
def test_a_write_to_a_shared_page_is_dropped_and_counted(
    attention: hal.Attention, slots: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = attention.pages.allocate(3)
    attention.pages.share(pages[1:2])
    given = ([1, 1], [2, 2], [[0], [1]])
    metadata = attention.build(on_device(*given, slots))
    assert metadata.slot_mapping.tolist() == [1, -1]
    assert metadata.seq_lens.tolist() == [2, 2]
    assert attention.lost_tokens == 1
    with pytest.raises(hal.BatchError, match="held 2 times"):
        attention.build(hal.Batch(*given))
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match="held 2 times"):
        attention.build(on_device(*given, slots))
    attention.pages.free(pages[1:2])
    assert attention.build(on_device(*given, slots)).slot_mapping.tolist() == [1, 5]


@pytest.mark.parametrize("make", [hal.Batch, on_device])
def test_debugging_names_a_page_that_a_request_has_twice(
    attention: hal.Attention, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match="request 1 has page 3 in columns 0 and 1"):
        attention.build(make([1, 1], [2, 9], [[0, 0, 0], [3, 3, 5]]))
