"""Batches that an engine already has on the device: the same metadata and results as from host lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers.device_batches import BLOCKS, KNOWN, LIMITS, make_tables, on_device
from .helpers.shapes import gqa, mla, model, sparse

STEPS = {
    "decodes": ([1, 1, 1], [5, 9, 1]),
    "mixed": ([1, 1, 7, 4], [5, 33, 7, 40]),
    "prefills": ([6, 3], [6, 20]),
    "one": ([1], [64]),
    "padded": ([1, 1, 0, 0], [5, 9, 0, 0]),
}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("name", STEPS)
def test_metadata_is_the_same_as_from_the_host(name: str, known: str) -> None:
    query_lens, seq_lens = STEPS[name]
    tables = make_tables(len(query_lens))
    plan = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64")
    host = plan.open(BLOCKS).build(hal.Batch(query_lens, seq_lens, tables))
    device = plan.open(BLOCKS).build(on_device(query_lens, seq_lens, tables, known))
    for field in ("slot_mapping", "positions", "req_id_per_token", "query_start_loc", "seq_lens"):
        assert torch.equal(getattr(device, field), getattr(host, field)), field
    if known != "bounds":
        assert device.num_decode_tokens == host.num_decode_tokens


def list_arrays(metadata: hal.StepMetadata) -> list[torch.Tensor]:
    """What a step's metadata holds, in both orders."""
    arrays = [metadata.slot_mapping, metadata.positions, metadata.req_id_per_token]
    for phase in metadata.phases:
        arrays += [phase.req_id, phase.key_bounds]
    for batch in (*metadata.groups, *metadata.phases):
        paged = batch.batch if isinstance(batch, hal.common.contract.step.GroupStep) else batch.batches[0]
        arrays += [paged.query_start_loc, paged.seq_lens, paged.block_table]
    return arrays


@pytest.mark.parametrize("is_sound", [True, False], ids=["sound", "stranger"])
@pytest.mark.parametrize("seed", range(6))
def test_steps_before_leave_nothing_to_a_step(seed: int, is_sound: bool) -> None:
    """From the host and from the device, in sizes that grow and shrink, and with an id in a table that names no page."""
    random = np.random.default_rng(seed)
    plan = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64")
    worn = plan.open(BLOCKS)
    for name in random.choice(list(STEPS), 40):
        repeats = int(random.integers(1, 3))
        query_lens, seq_lens = (lengths * repeats for lengths in STEPS[name])
        tables = make_tables(len(query_lens))
        batch = hal.Batch(query_lens, seq_lens, tables)
        if random.integers(2):
            tables[0, 0] = tables[0, 0] if is_sound else BLOCKS
            batch = on_device(query_lens, seq_lens, tables, "lengths")
        pairs = zip(list_arrays(worn.build(batch)), list_arrays(plan.open(BLOCKS).build(batch)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layer", [gqa(), mla(), sparse(topk=5)], ids=["gqa", "mla", "sparse"])
def test_results_are_the_same_as_from_the_host(layer: hal.config.LayerShape, known: str) -> None:
    plan = hal.plan(model(layer), "cpu", limits=LIMITS, dtype="float64")
    attentions = (plan.open(BLOCKS), plan.open(BLOCKS))
    random = torch.Generator().manual_seed(1)
    weights = [torch.randn(3, width, 12, generator=random, dtype=torch.float64) for width in (6, 5)] if layer.mla else []
    for attention in attentions:
        if weights:
            attention.bind_weights(0, *weights)
        for cache in attention.caches.values():
            cache.storage.copy_(torch.randn(cache.storage.shape, generator=random.manual_seed(2), dtype=torch.float64))
    query_lens, seq_lens = STEPS["mixed"]
    tables = make_tables(len(query_lens))
    batches = (hal.Batch(query_lens, seq_lens, tables), on_device(query_lens, seq_lens, tables, known))
    results = [_attend(a, layer, b) for a, b in zip(attentions, batches, strict=True)]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-10)


def _attend(attention: hal.Attention, layer: hal.config.LayerShape, batch: Any) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    metadata = attention.build(batch)
    tokens = metadata.num_tokens

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(tokens, *shape, generator=random, dtype=torch.float64)

    if layer.mla is None:
        return attention.attend(0, draw(4, 8), draw(2, 8), draw(2, 6), metadata)
    index = None
    if layer.indexer is not None:
        heads, width = layer.indexer.num_heads, layer.indexer.head_dim
        index = hal.IndexInputs(draw(heads, width), draw(width), draw(heads))
    return attention.attend_mla(0, draw(3, 6), draw(3, 4), draw(12), draw(4), metadata, index=index)


def test_a_slot_mapping_that_is_given_is_used() -> None:
    attention = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64").open(BLOCKS)
    slots = torch.tensor([77, -1, 3])
    batch = on_device([1, 1, 1], [5, 9, 1], make_tables(3), "bounds", slot_mapping=slots)
    assert torch.equal(attention.build(batch).slot_mapping, slots)


@pytest.mark.parametrize("block", [-1, -(2**31), BLOCKS, 2**31 - 1])
def test_a_page_outside_the_pool_is_written_nowhere_and_counted(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64").open(BLOCKS)
    tables = make_tables(2)
    tables[1, 2] = block
    metadata = attention.build(on_device([1, 1], [5, 9], tables, "bounds"))
    assert metadata.slot_mapping.tolist()[1] == -1
    assert metadata.slot_mapping.tolist()[0] >= 0
    assert attention.lost_tokens == 1
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=f"request 1 has block {block} in column 2"):
        attention.build(on_device([1, 1], [5, 9], tables, "bounds"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too_many_tokens": ({"num_tokens": 49}, "49 new tokens"),
    "too_long": ({"max_seq_len": 65}, "65"),
    "query_longer_than_request": ({"max_query_len": 10}, "max_query_len 10"),
    "slots": ({"slot_mapping": torch.zeros(2, dtype=torch.int64)}, "slot_mapping"),
    "slot_type": ({"slot_mapping": torch.zeros(3, dtype=torch.int32)}, "int64"),
    "decodes": ({"num_decodes": 4}, "num_decodes is 4"),
    "lengths": ({"query_lens": [1]}, "query_lens has 1"),
    "no_lengths": ({"query_lens": 3}, "query_lens is a int; expected a sequence"),
    "a_length_of_nothing": ({"seq_lens_upper": [5, None, 1]}, "seq_lens_upper holds None"),
    "part_of_a_length": ({"seq_lens_upper": [5, 9, 1.5]}, "seq_lens_upper holds 1.5"),
    "device_lengths": ({"query_lens": torch.ones(3, dtype=torch.int32)}, "query_lens is a Tensor; expected a sequence"),
    "too_many_requests": ({"num_decodes": None, "more": 6}, "9 requests"),
    "negative_tokens": ({"num_tokens": -1, "slot_mapping": None}, "num_tokens is -1"),
    "more_new_tokens": ({"query_lens": [1, 2, 1]}, "query_lens are 1 to 2, 4 together.*num_tokens = 3"),
    "longer_query": ({"query_lens": [0, 3, 0]}, "query_lens are 0 to 3.*max_query_len = 1"),
    "negative_query": ({"query_lens": [1, -1, 1]}, "query_lens are -1 to 1"),
    "longer_request": ({"seq_lens_upper": [5, 10, 1]}, "seq_lens_upper are 1 to 10.*max_seq_len = 9"),
    "shorter_than_new": (
        {"query_lens": [1, 1, 1], "seq_lens_upper": [5, 9, 0]},
        "request 2 has 1 new tokens and seq_lens_upper 0",
    ),
    "length_type": ({"seq_lens": torch.tensor([5, 9, 1])}, r"seq_lens is torch.int64 .*torch.int32 \[3\]"),
    "starts_type": ({"query_start_loc": torch.arange(4)}, "query_start_loc is torch.int64"),
    "starts_count": ({"query_start_loc": torch.arange(3, dtype=torch.int32)}, r"query_start_loc .*\[3\].*\[4\]"),
    "table_type": ({"block_tables": torch.zeros(3, 16)}, "block_tables is torch.float32"),
    "table_rows": ({"block_tables": torch.zeros(2, 16, dtype=torch.int32)}, r"block_tables .*\[2, 16\].*\[3, 16\]"),
    "tables": ({"block_tables": [torch.zeros(3, 16, dtype=torch.int32)] * 3}, "3 block tables; expected one, or one per"),
    "slots_and_tables": ({"slot_mapping": [torch.zeros(3, dtype=torch.int64)] * 2}, "1 block tables and 2 slot mappings"),
    "devices": ({"seq_lens": torch.zeros(3, dtype=torch.int32, device="meta")}, "lie on .*cpu.*meta"),
    "device": ({"everything": "meta"}, "the batch lies on meta, the plan runs on cpu"),
}


def refused(changes: dict[str, Any]) -> Any:
    """The good batch of three decodes with some arguments changed; more: requests beside them; everything: on a device."""
    more, device = changes.pop("more", 0), changes.pop("everything", "cpu")
    queries, lengths = [1] * (3 + more), [5, 9, 1] + [1] * more
    arguments = {
        "query_start_loc": torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32, device=device),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
        "block_tables": torch.zeros(3 + more, 16, dtype=torch.int32, device=device),
        "num_tokens": sum(queries),
        "max_query_len": 1,
        "max_seq_len": 9,
    }
    return hal.Batch.from_device(**(arguments | changes))


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_host_can_see_is_refused_before_anything_is_written(name: str) -> None:
    changes, words = REFUSED[name]
    attention = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64").open(BLOCKS)
    metadata = attention.build(refused({}))
    slots, step, free = metadata.slot_mapping.clone(), metadata.step_id, attention.pages.num_free
    with pytest.raises(hal.BatchError, match=words):
        attention.build(refused(dict(changes)))
    assert torch.equal(metadata.slot_mapping, slots)
    assert not any(bool(cache.storage.any()) for cache in attention.caches.values())
    assert attention.pages.num_free == free
    assert attention.build(refused({})).step_id == step + 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64])
def test_lengths_in_few_bits_add_up(dtype: type) -> None:
    queries, lengths = [15, 100, 100], [100, 100, 100]
    limits = hal.Limits(128, 8, 256, block_size=8)
    plan = hal.plan(model(sparse(topk=5)), "cpu", limits=limits, dtype="float64")
    tables, narrow = make_tables(3), {"query_lens": np.array(queries, dtype), "seq_lens_upper": np.array(lengths, dtype)}
    pairs = [plan.open(BLOCKS).build(on_device(queries, lengths, tables, "lengths", **hints)) for hints in ({}, narrow)]
    assert all(torch.equal(*pair) for pair in zip(*map(list_arrays, pairs), strict=True))
    assert pairs[0].prefill.chunks == pairs[1].prefill.chunks


def test_a_table_that_is_too_narrow_is_refused() -> None:
    attention = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64").open(BLOCKS)
    with pytest.raises(hal.BatchError, match=r"2 columns.*3 pages"):
        attention.build(on_device([1], [9], make_tables(1)[:, :2].copy(), "bounds"))
