"""What only the device can see: who misses a page sees no key in that step, tokens without a place are written nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers import oracle
from .helpers.compressed_run import layer_inputs, layers
from .helpers.engine import Engine, snapshot, unchanged
from .helpers.past_engine import BLOCKS, PAGE, SHAPES, make_engine, on_device
from .helpers.shapes import model

NOTHING = [-1, -(2**31), BLOCKS, 2**31 - 1]
STEPS = {
    "decodes": [(0, 1), (1, 1), (2, 1)],
    "prefills": [(1, 6), (2, 9)],
    "mixed": [(0, 1), (1, 7), (2, 3)],
}


def lose(engine: Engine, step: list[tuple[int, int]], lost: dict[int, list[int]], block: int) -> Callable[[hal.Batch], Any]:
    """Make a host batch a device batch whose tables have a block for some columns (by request), and tell the oracle."""

    def to_batch(batch: hal.Batch) -> Any:
        table = batch.block_tables[0].copy()
        for row, (name, new) in enumerate(step):
            columns, running = lost.get(name, []), engine.requests[name]
            table[row, columns] = block
            is_hidden = any(column in live_columns(engine, running.length - new, running.length) for column in columns)
            running.missing = frozenset(range(running.length if is_hidden else 0))
        return on_device(batch, table)

    return to_batch


def live_columns(engine: Engine, begin: int, end: int) -> set[int]:
    """The columns that new tokens at begin..end may see in any layer, position by position."""
    queries = [(layer, position) for layer in engine.shape.layers for position in range(begin, end)]
    return {key // PAGE for layer, position in queries for key in oracle.seen(layer, position, end)}


@pytest.mark.parametrize("block", NOTHING)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("kind", SHAPES)
def test_a_request_that_misses_a_page_sees_no_key_and_the_others_see_theirs(kind: str, name: str, block: int) -> None:
    """Columns of the past only, so that every new token has a place; one behind a window or before a chunk is not missed."""
    engine, run = make_engine(kind)
    step = STEPS[name]
    lost = {0: [0, 3], 1: [2], 2: [0]}
    before = engine.attention.pages.num_free
    live = 0

    def to_batch(batch: hal.Batch) -> Any:
        nonlocal live
        for request, new in step:
            length = engine.requests[request].length
            live += len(live_columns(engine, length - new, length) & set(lost[request]))
        return lose(engine, step, lost, block)(batch)

    run(engine, step, to_batch=to_batch)
    assert engine.attention.lost_tokens == 0
    assert engine.attention.lost_pages == live
    assert engine.attention.pages.num_free <= before


@pytest.mark.parametrize("kind", SHAPES)
def test_a_request_may_lose_every_page_of_its_past(kind: str) -> None:
    engine, run = make_engine(kind)
    step = [(0, 3), (1, 3)]
    run(engine, step, to_batch=lose(engine, step, {0: [0, 1, 2, 3, 4], 1: [0, 1, 2]}, -1))


def test_a_request_that_misses_a_page_sees_no_entry_either() -> None:
    """Compressed layers: the rows of the request are zero, and those of the other what they are with every page there."""
    outs = {}
    for lost in (False, True):
        engine = Engine(model(*layers()), dtype="float64", block_size=8)
        for step in ([(0, 21), (1, 13)], [(0, 1), (1, 6)]):
            batch = engine.schedule(step)
            table = batch.block_tables[0].copy()
            table[1, 0] = -1 if lost and step[0] == (0, 1) else table[1, 0]
            metadata = engine.attention.build(on_device(batch, table))
            for layer in engine.shape.layers:
                inputs = layer_inputs(engine, layer, step)
                outs[lost, layer.layer_id] = engine.attention.attend_compressed(layer.layer_id, metadata=metadata, **inputs)
        assert engine.attention.lost_pages == int(lost)
        assert engine.attention.lost_tokens == 0
    for layer in layers():
        assert not outs[True, layer.layer_id][1:].any()
        assert torch.equal(outs[True, layer.layer_id][:1], outs[False, layer.layer_id][:1])


@pytest.mark.parametrize("kind", SHAPES)
def test_what_has_a_place_is_written_where_a_page_of_the_past_is_missing(kind: str) -> None:
    """So that no later step reads there what another request left; nothing else is written, page 0 least of all."""
    engine, run = make_engine(kind)
    step, before = [(0, 3), (1, 1)], snapshot(engine.attention)
    run(engine, step, to_batch=lose(engine, step, {0: [4], 1: [2]}, -1))
    places = [(0, 21), (0, 22), (0, 23), (1, 13)]
    for key, storage in before.items():
        written = (engine.attention.caches[key].storage != storage).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert written == sorted({engine.requests[name].pages[position // PAGE] for name, position in places})


@pytest.mark.parametrize("block", NOTHING)
def test_a_new_token_without_a_place_is_written_nowhere(block: int) -> None:
    engine, run = make_engine("gqa")
    step = [(1, 6), (2, 1)]
    run(engine, step, to_batch=lose(engine, step, {1: [3, 4]}, block))
    assert engine.attention.lost_tokens == 6
    assert engine.attention.lost_pages == 2


@pytest.mark.parametrize("kind", ["window", "chunk"])
def test_pages_behind_a_window_or_before_a_chunk_are_not_missed(kind: str) -> None:
    engine, run = make_engine(kind)
    step = STEPS["decodes"]
    run(engine, step, to_batch=lose(engine, step, {0: [0, 1, 2], 1: [0]}, BLOCKS))
    assert engine.attention.lost_pages == 0


def test_pages_of_a_request_without_a_new_token_are_not_missed() -> None:
    engine, _ = make_engine("gqa")
    batch = engine.schedule([(0, 1), (1, 1)])
    table = batch.block_tables[0].copy()
    table[1] = -1
    tensors = {"query_start_loc": torch.tensor([0, 1, 1], dtype=torch.int32), "num_tokens": 1, "query_lens": [1, 0]}
    assert engine.attention.build(on_device(batch, table, **tensors)).seq_lens.tolist() == [22, 14]
    assert engine.attention.lost_pages == 0
    host = engine.attention.build(hal.Batch([1, 0], batch.seq_lens, table))
    assert host.seq_lens.tolist() == [22, 14]


def built(engine: Engine, batch: hal.Batch, **changes: Any) -> hal.StepMetadata:
    table = changes.pop("table", batch.block_tables[0])
    return engine.attention.build(on_device(batch, np.ascontiguousarray(table), **changes))


LENGTHS: dict[str, tuple[dict[str, Any], list[int], str]] = {
    "shorter_than_its_new_tokens": ({"seq_lens": [22, 2, 7]}, [1, 7, 1], "request 1 has query_len 7 and seq_len 2"),
    "negative": ({"seq_lens": [22, 20, -5]}, [1, 7, 1], "request 2 has query_len 1 and seq_len -5"),
    "as_negative_as_can_be": ({"seq_lens": [22, 20, -(2**31)]}, [1, 7, 1], "request 2 has query_len 1 and seq_len -2147483648"),
    "longer_than_said": ({"seq_lens": [22, 20, 10**6]}, [1, 7, 1], "request 2 has query_len 1 and seq_len 1000000"),
    "starts_step_back": ({"query_start_loc": [0, 5, 3, 9]}, [], r"query_start_loc is \[0, 5, 3, 9\]"),
    "starts_past_the_tokens": ({"query_start_loc": [0, 1, 8, 99]}, [], r"query_start_loc is .*at most 9 last"),
    "starts_late": ({"query_start_loc": [2, 3, 8, 9]}, [], r"query_start_loc is .*expected 0 first"),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("kind", ["gqa", "mla", "sparse"])
def test_lengths_that_do_not_add_up(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is wrong is written nowhere and counted, and what the kernels are told stays inside the tensors."""
    engine, _ = make_engine(kind)
    changes, queries, words = LENGTHS[name]
    tensors = {key: torch.tensor(value, dtype=torch.int32) for key, value in changes.items()}
    batch = engine.schedule([(0, 1), (1, 7), (2, 1)])
    hints = {"query_lens": None, "seq_lens_upper": None}
    metadata = built(engine, batch, **tensors, **hints)
    assert int(metadata.query_start_loc.min()) >= 0
    assert int(metadata.query_start_loc.max()) <= 9
    assert 0 <= int(metadata.seq_lens.min()) <= int(metadata.seq_lens.max()) <= 22
    if queries:
        wrong = [i for i, given in enumerate(changes["seq_lens"]) if given != batch.seq_lens[i]]
        wrong = [i for i in wrong if not queries[i] <= changes["seq_lens"][i] <= 22]
        tokens = [token for token, request in enumerate(np.repeat(range(3), queries)) if request in wrong]
        assert tokens
        assert set(metadata.slot_mapping[tokens].tolist()) == {-1}
        assert engine.attention.lost_tokens == len(tokens)
    attend(engine, kind, metadata)
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=words):
        built(engine, batch, **tensors, **hints)


PHASES: dict[str, dict[str, Any]] = {
    "decodes_of_more_tokens": {"num_decodes": 1, "query_start_loc": [0, 3, 9, 9]},
    "decodes_of_fewer_tokens": {"num_decodes": 2, "query_start_loc": [0, 1, 1, 9]},
    "told_of_more_tokens": {"num_decodes": 1, "query_start_loc": [0, 1, 8, 9], "query_lens": [3, 5, 1]},
}


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("kind", ["gqa", "mla", "sparse"])
def test_decodes_that_end_elsewhere_than_said(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token can be told to be of either phase: none is written or sees a key, and no phase is told of tokens past its own."""
    engine, _ = make_engine(kind)
    changes = {"query_lens": None, "seq_lens_upper": None, "max_query_len": 9} | PHASES[name]
    changes["query_start_loc"] = torch.tensor(changes["query_start_loc"], dtype=torch.int32)
    batch = engine.schedule([(0, 1), (1, 7), (2, 1)])
    metadata, before = built(engine, batch, **changes), snapshot(engine.attention)
    for phase in metadata.phases:
        starts, ids = phase.batches[0].query_start_loc, phase.req_id
        assert int(starts[0]) == 0
        assert int(starts.max()) <= phase.tokens.stop - phase.tokens.start
        assert 0 <= int(ids.min()) <= int(ids.max()) < len(starts) - 1
    assert not attend(engine, kind, metadata).any()
    assert unchanged(engine.attention, before)
    assert engine.attention.lost_tokens == 9
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=r"query_start_loc\[\d\] is \d; the \d decodes that come first have \d new tokens"):
        built(engine, batch, **changes)


HINTS: dict[str, tuple[dict[str, list[int]], str]] = {
    "other_new_tokens": ({"query_lens": [1, 6, 2]}, "request 1 has 7 in the batch's tensors and 6 in query_lens"),
    "shorter": ({"seq_lens_upper": [22, 19, 7]}, "request 1 has 20 in the batch's tensors and 19 in seq_lens_upper"),
    "longer": ({"seq_lens_upper": [22, 21, 7]}, "request 1 has 20 in the batch's tensors and 21 in seq_lens_upper"),
    "longer_decode": ({"seq_lens_upper": [21, 20, 7]}, "request 0 has 22 in the batch's tensors and 21 in seq_lens_upper"),
}


@pytest.mark.parametrize("name", HINTS)
def test_debugging_compares_what_the_host_was_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine("mla")
    changes, words = HINTS[name]
    batch = engine.schedule([(0, 1), (1, 7), (2, 1)])
    changes = {"max_seq_len": 25, "num_decodes": 1} | changes
    monkeypatch.setenv("HAL_DEBUG", "1")
    built(engine, batch)
    with pytest.raises(hal.BatchError, match=words):
        built(engine, batch, **changes)


def attend(engine: Engine, kind: str, metadata: hal.StepMetadata) -> torch.Tensor:
    """What a call of the step gives."""
    count = metadata.num_tokens
    if kind == "gqa":
        inputs = engine.random(count, 4, 8), engine.random(count, 2, 8), engine.random(count, 2, 6)
        return engine.attention.attend(0, *inputs, metadata)
    index = None
    if kind == "sparse":
        index = hal.IndexInputs(engine.random(count, 2, 4), engine.random(count, 4), engine.random(count, 2))
    return engine.attention.attend_mla(
        0,
        engine.random(count, 3, 6),
        engine.random(count, 3, 4),
        engine.random(count, 12),
        engine.random(count, 4),
        metadata,
        index=index,
    )


@pytest.mark.parametrize("slot", [BLOCKS * PAGE, 2**40])
def test_a_given_slot_outside_the_pool_writes_nothing(slot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine("gqa")
    batch = engine.schedule([(0, 1), (1, 1)])
    slots = torch.tensor([slot, -1])
    metadata = built(engine, batch, slot_mapping=slots)
    assert metadata.slot_mapping.tolist() == [-1, -1]
    assert engine.attention.lost_tokens == 1
    before = snapshot(engine.attention)
    attend(engine, "gqa", metadata)
    assert unchanged(engine.attention, before)
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=f"token 0 has slot {slot}; slots are -1 or 0 to {BLOCKS * PAGE - 1}"):
        built(engine, batch, slot_mapping=slots)


@pytest.mark.parametrize("block", NOTHING)
def test_debugging_names_what_is_wrong_before_anything_is_written(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine("gqa")
    good = engine.attention.build(engine.schedule([(0, 1)]))
    slots, before = good.slot_mapping.clone(), snapshot(engine.attention)
    batch = engine.schedule([(0, 1), (1, 1)])
    table = batch.block_tables[0].copy()
    table[1, 2] = block
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=f"request 1 has block {block} in column 2; blocks are 0 to {BLOCKS - 1}"):
        built(engine, batch, table=table)
    assert torch.equal(good.slot_mapping, slots)
    assert unchanged(engine.attention, before)
    attend_one = engine.random(1, 4, 8), engine.random(1, 2, 8), engine.random(1, 2, 6)
    engine.attention.attend(0, *attend_one, good)


def test_what_is_right_is_never_counted() -> None:
    """Junk behind the last page included."""
    engine, run = make_engine("gqa")
    for step in STEPS.values():
        run(engine, step, to_batch=lambda batch: on_device(batch, batch.block_tables[0]))
    assert engine.attention.lost_tokens == engine.attention.lost_pages == 0


def test_debugging_names_a_write_to_a_shared_page(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine("gqa")
    batch = engine.schedule([(0, 1), (1, 1)])
    page = engine.requests[1].pages[-1]
    engine.attention.pages.share([page])
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=f"request 1 would write position 13 to page {page}, which is held 2 times"):
        built(engine, batch)
    engine.attention.pages.free([page])
    built(engine, batch)
