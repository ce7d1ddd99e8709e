"""attend_compressed against its definition: any history of steps, every kind of layer, one softmax with one sink."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import hal

from .helpers import compressed_run as run
from .helpers.device_batches import on_device
from .helpers.engine import Engine, Running, snapshot, unchanged
from .helpers.histories import BOUNDED, HISTORIES
from .helpers.shapes import model

# Pages of 16 keep the states of their last tokens alone, pages of 8 those of all.
LIMITS = hal.Limits(96, 6, 64, block_size=16)
PAGES = pytest.mark.parametrize("block_size", [8, 16, 32], ids="page{}".format)


def make_engine(dtype: str = "float64", **plan) -> Engine:
    limits = replace(LIMITS, block_size=plan.pop("block_size", LIMITS.block_size))
    return Engine(model(*run.layers()), dtype=dtype, limits=limits, **plan)


def random_inputs(tokens: int, seed: int = 5) -> dict[int, dict]:
    """Arguments of every layer's call for so many tokens, the same for the same seed."""
    source = make_engine(seed=seed)
    source.schedule(((0, tokens),))
    return {layer.layer_id: run.layer_inputs(source, layer, ((0, tokens),)) for layer in source.shape.layers}


@PAGES
@pytest.mark.parametrize("num_spec_tokens", [0, 3], ids=["plain", "spec"])
@settings(BOUNDED, max_examples=10)
@given(history=HISTORIES)
def test_attend_compressed_gives_its_definition_after_any_history(num_spec_tokens: int, block_size: int, history) -> None:
    engine = make_engine(num_spec_tokens=num_spec_tokens, block_size=block_size)
    for step, leaving in history:
        run.run_step(engine, step)
        engine.finish(leaving)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_attend_compressed_gives_its_definition_in_every_type(dtype: str) -> None:
    engine = make_engine(dtype)
    for step in [((0, 17), (1, 3)), ((1, 1), (0, 1)), ((0, 1), (1, 30)), ((2, 9), (0, 2), (1, 1))]:
        run.run_step(engine, step)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attend_compressed_reads_what_quantised_caches_hold(dtype: str) -> None:
    """Rows and entries of 584-byte records, index keys in fp8, each held against what its codec gives back."""
    engine = make_engine(dtype, kv_layout="compressed")
    names = {group.part: group.layout.name for group in engine.plan.groups}
    assert names == {
        "kv": "compressed",
        "entries": "compressed",
        "index": "indexer_fp8",
        "state": "state",
        "index_state": "state",
    }
    for step in [((0, 17), (1, 3)), ((1, 1), (0, 1)), ((0, 1), (1, 30)), ((2, 9), (0, 2), (1, 1))]:
        run.run_step(engine, step)


@PAGES
def test_tokens_that_a_draft_lost_are_written_again(block_size: int) -> None:
    """A request falls back behind entries that it had closed; what comes next does not see them until they are new."""
    engine = make_engine(num_spec_tokens=3, block_size=block_size)
    for counts, lost in (((13,), 0), ((4, 4), 3), ((4,), 4), ((2,), 1), ((4, 1), 0), ((4,), 2), ((17,), 0)):
        for count in counts:
            run.run_step(engine, ((0, count),))
        if lost:
            forget(engine, 0, lost)


def forget(engine: Engine, name: int, count: int) -> None:
    """The request without its last tokens; the caches stay as they are."""
    running = engine.requests[name]
    running.length -= count
    running.cached = {key: [torch.cat(pieces)[: running.length]] for key, pieces in running.cached.items()}


@PAGES
def test_a_shared_prefix_carries_its_states(block_size: int) -> None:
    """A second request starts from the first one's full pages: its groups begin with states that it never wrote."""
    engine = make_engine(block_size=block_size)
    run.run_step(engine, ((0, 37),))
    first = engine.requests[0]
    engine.requests[1] = Running(
        length=32,
        pages=engine.attention.pages.share(first.pages[: 32 // block_size]),
        cached={key: [torch.cat(pieces)[:32]] for key, pieces in first.cached.items()},
    )
    for step in [((1, 2),), ((1, 1), (0, 3)), ((1, 9), (0, 1))]:
        run.run_step(engine, step)


def test_an_engines_own_memory_gives_what_hals_pools_give() -> None:
    """Bound storage whose pages lie further apart than they are long gives what hal's own pools give."""
    plan = make_engine().plan
    storage = {
        spec.key: torch.zeros(64, 2 * spec.rows_per_page, spec.layout.width, dtype=getattr(torch, spec.layout.dtype))
        for spec in plan.cache_specs()
    }
    bound = plan.bind({spec.key: storage[spec.key][:, : spec.rows_per_page] for spec in plan.cache_specs()})
    engine, length = make_engine(), 0
    for count in (19, 1, 5):
        length += count
        batch = engine.schedule(((0, count),))
        own, theirs = engine.attention.build(batch), bound.build(batch)
        for layer_id, arguments in random_inputs(count, seed=length).items():
            torch.testing.assert_close(
                bound.attend_compressed(layer_id, metadata=theirs, **arguments),
                engine.attention.attend_compressed(layer_id, metadata=own, **arguments),
            )
    wrong = {spec.key: storage[spec.key] for spec in plan.cache_specs()} | {(1, "entries"): torch.zeros(64, 1, run.WIDTH)}
    with pytest.raises(hal.LayoutError, match="entries"):
        plan.bind(wrong)


def test_an_entry_is_the_same_however_its_tokens_come() -> None:
    """Prefill in one piece, in pieces that cut groups, token by token, and in short extends give the same rows."""
    pieces = [[33], [5, 1, 1, 9, 17], [1] * 33, [3] * 11]
    found = []
    for counts in pieces:
        engine, inputs = make_engine(num_spec_tokens=2), random_inputs(33)
        start, outputs = 0, []
        for count in counts:
            metadata = engine.attention.build(engine.schedule(((0, count),)))
            span = slice(start, start + count)
            for layer_id, given_inputs in inputs.items():
                out = engine.attention.attend_compressed(layer_id, metadata=metadata, **cut(given_inputs, span))
                outputs.append((layer_id, start, out))
            start += count
        rows = {layer_id: torch.cat([out for one, _, out in outputs if one == layer_id]) for layer_id in inputs}
        found.append((rows, {key: cache.rows.clone() for key, cache in engine.attention.caches.items()}))
    for rows, caches in found[1:]:
        for layer_id, out in rows.items():
            torch.testing.assert_close(out, found[0][0][layer_id], atol=1e-12, rtol=1e-12)
        for key, held in caches.items():
            torch.testing.assert_close(held, found[0][1][key], atol=1e-12, rtol=1e-12)


def cut(inputs: dict, span: slice) -> dict:
    """The arguments of a call, a run of tokens of them."""
    return {
        "q": inputs["q"][span],
        "kv": inputs["kv"][span],
        "compressor": cut_compressor(inputs["compressor"], span),
        "sink": inputs["sink"],
        "index": inputs["index"]
        and hal.IndexInputs(inputs["index"].q[span], cut_compressor(inputs["index"].k, span), inputs["index"].weights[span]),
    }


def cut_compressor(compressor: hal.Compressor | None, span: slice) -> hal.Compressor | None:
    """The same of a compressor."""
    if compressor is None:
        return None
    fields = {name: getattr(compressor, name)[span] for name in ("kv", "score", "cos", "sin")}
    weights = {name: getattr(compressor, name) for name in ("position_bias", "norm_weight", "eps")}
    return hal.Compressor(**fields, **weights)


def attend_wrongly(attend: Any, times: int, *given: Any, sink: torch.Tensor | None, out: Any = None, **options: Any) -> Any:
    """A call that applies its sink so many times."""
    result, lse = attend(*given, **options, need_lse=True)
    if sink is not None:
        result = result * torch.sigmoid(lse - sink)[..., None] ** times
    return result if out is None else out.copy_(result), None


def test_dropping_the_sink_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle of this file must fail where a backend leaves the sink out, or applies it once per segment."""
    engine = make_engine()
    run.run_step(engine, ((0, 20),))
    for times in (0, 2):
        for kernels in engine.attention._binding.kernels.values():
            for phase in kernels.phases.values():
                monkeypatch.setattr(phase, "sparse_mla", partial(attend_wrongly, hal.kernels("cpu").sparse_mla, times))
        with pytest.raises(AssertionError):
            run.run_step(engine, ((0, 1),))


def test_the_entries_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle must fail where only the window is attended to."""
    engine = make_engine()
    run.run_step(engine, ((0, 20),))
    for kernels in engine.attention._binding.kernels.values():
        attend = kernels.phases["decode"].sparse_mla
        monkeypatch.setattr(
            kernels.phases["decode"], "sparse_mla", lambda q, segments, attend=attend, **kw: attend(q, segments[:1], **kw)
        )
    with pytest.raises(AssertionError):
        run.run_step(engine, ((0, 1),))


def test_padded_tokens_write_nothing_and_come_back_as_zeros() -> None:
    step = ((0, 13), (1, 4))
    inputs = random_inputs(17)
    found = []
    for one, padding in ((make_engine(), {"num_tokens_padded": 24, "num_reqs_padded": 4}), (make_engine(), {})):
        metadata = one.attention.build(one.schedule(step, **padding))
        outputs = []
        for layer_id, given_inputs in inputs.items():
            padded = pad(given_inputs, metadata.num_tokens_padded)
            out = one.attention.attend_compressed(layer_id, metadata=metadata, **padded)
            assert not out[17:].any()
            outputs.append(out[:17])
        found.append((outputs, {key: cache.storage for key, cache in one.attention.caches.items()}))
    for padded, exact in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(padded, exact)
    for key, storage in found[0][1].items():
        torch.testing.assert_close(storage, found[1][1][key])


def pad(inputs: dict, tokens: int) -> dict:
    """The arguments with NaN in the rows of padded tokens."""

    def longer(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.new_full((tokens - tensor.shape[0], *tensor.shape[1:]), torch.nan)
        return torch.cat([tensor, rows])

    def longer_compressor(compressor: hal.Compressor | None) -> hal.Compressor | None:
        if compressor is None:
            return None
        return replace(compressor, **{name: longer(getattr(compressor, name)) for name in ("kv", "score", "cos", "sin")})

    index = inputs["index"]
    return inputs | {
        "q": longer(inputs["q"]),
        "kv": longer(inputs["kv"]),
        "compressor": longer_compressor(inputs["compressor"]),
        "index": index and hal.IndexInputs(longer(index.q), longer_compressor(index.k), longer(index.weights)),
    }


def test_a_step_without_any_token_is_run() -> None:
    engine = make_engine()
    run.run_step(engine, ())
    run.run_step(engine, ((0, 0),))


def test_a_made_up_step_for_capture_writes_nothing() -> None:
    engine = make_engine()
    run.run_step(engine, ((0, 15),))
    before = snapshot(engine.attention)
    metadata = engine.attention.build_for_capture(2, 18)
    for layer_id, arguments in random_inputs(18).items():
        engine.attention.attend_compressed(layer_id, metadata=metadata, **arguments)
    assert unchanged(engine.attention, before)


@pytest.mark.parametrize("known", ["bounds", "decodes", "lengths"])
@pytest.mark.parametrize(
    ("queries", "lengths"), [([1, 1, 1], [5, 16, 1]), ([1, 1, 9, 4], [8, 33, 9, 40]), ([1, 1, 0], [8, 9, 0])]
)
def test_a_device_batch_gives_the_same(queries: list[int], lengths: list[int], known: str) -> None:
    tables = np.random.default_rng(0).permutation(64)[: len(queries) * 12].reshape(-1, 12).astype(np.int32)
    tokens = sum(queries)
    found = []
    for batch in (hal.Batch(queries, lengths, tables), on_device(queries, lengths, tables, known)):
        engine = make_engine()
        for cache in engine.attention.caches.values():
            cache.storage.copy_(torch.randn(cache.storage.shape, generator=torch.Generator().manual_seed(3)))
        metadata = engine.attention.build(batch)
        for layer_id, arguments in random_inputs(tokens).items():
            found.append(engine.attention.attend_compressed(layer_id, metadata=metadata, **arguments))
    half = len(found) // 2
    for host, device in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(host, device, atol=1e-12, rtol=1e-12)


def test_an_engine_slot_mapping_counts_tokens() -> None:
    """Slots that the engine gives are its tokens'; the rows that tokens share are worked out of them."""
    engine = make_engine()
    tables = np.arange(6, dtype=np.int32).reshape(1, 6)
    given = on_device([10], [10], tables, "bounds", slot_mapping=torch.tensor([*range(9), -1]))
    slots = {
        group.part: step.slot_mapping.tolist()
        for group, step in zip(engine.plan.groups, engine.attention.build(given).groups, strict=True)
        if 1 in group.layer_ids
    }
    assert slots["kv"] == [*range(9), -1]
    assert slots["state"] == [-1, -1, 2, 3, 4, 5, 6, 7, 0, -1]
    assert slots["entries"] == slots["index"] == [-1, -1, -1, 0, -1, -1, -1, 1, -1, -1]


def test_pools_of_their_own_freed_behind_windows() -> None:
    """A table per group, the window and state groups without the pages that no token of the step reaches back to."""
    plan = make_engine().plan
    attention = plan.open(plan.blocks_per_group())
    pages = {group.group_id: attention.pools[group.group_id].allocate(6) for group in plan.groups}
    shared, length = make_engine(), 0
    for count in (20, 3, 1, 1, 14, 1):
        length += count
        tables = []
        for group in plan.groups:
            row = list(pages[group.group_id])
            if group.window is not None:
                behind = max(0, length - count - group.window + 1) // plan.block_size
                row[:behind] = [-1] * behind
            tables.append(np.array([row], np.int32))
        own = attention.build(hal.Batch([count], [length], tables))
        together = shared.attention.build(shared.schedule(((0, count),)))
        for layer_id, arguments in random_inputs(count, seed=length).items():
            torch.testing.assert_close(
                attention.attend_compressed(layer_id, metadata=own, **arguments),
                shared.attention.attend_compressed(layer_id, metadata=together, **arguments),
            )


def test_layers_that_share_an_indexer_follow_the_owner_of_their_own_ratio() -> None:
    """A choice of entries of two tokens each, as wide as the one of four, comes in between."""
    shape = model(
        run.compressed(0, 4, topk=2), run.compressed(1, 2, topk=2), run.compressed(2, 4, topk=2, owns=False, entry_source=0)
    )
    engine = Engine(shape, dtype="float64", limits=LIMITS)
    assert [buffer.shape for buffer in engine.plan.buffers if buffer.name.startswith("top-k")] == [(64, 2), (64, 2)]
    for step in [((0, 21), (1, 3)), ((1, 1), (0, 1)), ((0, 1), (1, 30))]:
        run.run_step(engine, step)
