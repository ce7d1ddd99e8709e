"""Quantised caches through attend, attend_mla and attend_compressed: the definition over what the bytes decode to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.stepping import runs as mla_runs
from hal.config import ModelShape

from .helpers import compressed_run, gqa_run, mla_run
from .helpers.histories import BOUNDED, HISTORIES
from .helpers.quantised_run import QuantisedEngine
from .helpers.shapes import gqa, mla, model, sparse

LATENTS = ["latent_fp8", "fp8_ds_mla"]
VARIANTS = ["e4m3fn", "e4m3fnuz"]
HEADS = model(gqa(0), gqa(1, window=3), gqa(2, kv_source=0), gqa(3, sink=True, num_kv_heads=1))
ROWS = model(mla(0), sparse(1, topk=5), sparse(2, topk=5, owns=False), mla(3, sink=True))
SCRIPT = [
    [(0, 5), (1, 9)],
    [(1, 1), (0, 1), (2, 6)],
    [(2, 1), (3, 4), (0, 0), (1, 1)],
    [(3, 7), (0, 1), (1, 1), (2, 8)],
]


def make_engine(shape: ModelShape, kv_layout: str, fp8: str = "e4m3fn", dtype: str = "float32", **plan) -> QuantisedEngine:
    """On the CPU, with pages as a device of one e4m3 variant keeps them."""
    engine = QuantisedEngine(shape, dtype=dtype, kv_layout=kv_layout, seed=4, **plan)
    engine.plan = hal.plan(
        shape, replace(engine.plan.device, fp8=fp8), limits=engine.plan.limits, dtype=dtype, kv_layout=kv_layout
    )
    engine.attention = engine.plan.open(64)
    assert all(group.layout.fp8 == fp8 for group in engine.plan.groups if "state" not in group.part)
    return engine


@pytest.fixture
def absorbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is read from the cache: the decompressed form takes the new tokens' latents as they come."""
    monkeypatch.setattr(mla_runs, "choose_form", lambda *_: "absorbed")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fp8", VARIANTS)
def test_attend_reads_what_quantised_heads_hold(fp8: str, dtype: str) -> None:
    engine = make_engine(HEADS, "kv_fp8", fp8, dtype)
    for layer_id, scale in ((0, torch.tensor([0.02, 0.03])), (1, torch.rand(2, 2) * 0.01 + 0.01)):
        engine.attention.set_scale(layer_id, scale)
    for step in SCRIPT:
        gqa_run.run_step(engine, step)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fp8", VARIANTS)
@pytest.mark.parametrize("kv_layout", LATENTS)
def test_attend_mla_reads_what_quantised_latents_hold(kv_layout: str, fp8: str, dtype: str, absorbed: None) -> None:
    engine = make_engine(ROWS, kv_layout, fp8, dtype)
    if kv_layout == "latent_fp8":
        engine.attention.set_scale(0, torch.tensor([0.03]))
    weights = mla_run.bind(engine)
    for step in SCRIPT:
        mla_run.run_step(engine, weights, step)


@pytest.mark.parametrize("kv_layout", LATENTS)
def test_decompressed_latents_are_cached_ones_before_the_step_and_given_ones_in_it(
    kv_layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier tokens come from the cache, new ones as they were given."""
    monkeypatch.setattr(mla_runs, "choose_form", lambda *_: "decompressed")
    engine = make_engine(ROWS, kv_layout)
    engine.keeps_new = True
    weights = mla_run.bind(engine)
    for step in SCRIPT:
        mla_run.run_step(engine, weights, step)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fp8", VARIANTS)
def test_attend_compressed_reads_what_quantised_rows_hold(fp8: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and entries as their bytes decode, and entries within the quantisation's error of what they are made of.

    Indexers pick every entry: which ones they pick of some is another test's question.
    """
    exact = compressed_run.entries

    def decode(engine, name: int, key, compressor, count: int, groups: int) -> torch.Tensor:
        made = exact(engine, name, key, compressor, count, groups)
        if key[1] != 1:
            return made
        (found,) = engine.requests[name].decode((key[0], "entries"), count)
        # Half a step of three bits of mantissa, half of one of bf16's eight, and the smallest step of a block up to 4.
        bound = made.abs() * (1 / 16 + 2.0**-8) + 4 / 224 * 2.0**-9
        assert bool(((found - made).abs() <= bound).all())
        return found

    monkeypatch.setattr(compressed_run, "entries", decode)
    layers = [
        layer if layer.indexer is None else replace(layer, indexer=replace(layer.indexer, topk=32))
        for layer in compressed_run.layers()
    ]
    engine = make_engine(model(*layers), "compressed", fp8, dtype, limits=hal.Limits(96, 6, 64, block_size=8))
    for step in [((0, 17), (1, 3)), ((1, 1), (0, 1)), ((0, 1), (1, 30)), ((2, 9), (0, 2), (1, 1))]:
        compressed_run.run_step(engine, step)


@settings(BOUNDED, max_examples=6)
@given(history=HISTORIES, block_size=st.sampled_from([1, 4, 16]), kv_layout=st.sampled_from(["kv_fp8", *LATENTS]))
def test_quantised_caches_give_what_their_bytes_hold_after_any_history(history, block_size: int, kv_layout: str) -> None:
    shape = HEADS if kv_layout == "kv_fp8" else model(*(replace(layer, indexer=None) for layer in ROWS.layers))
    engine = make_engine(shape, kv_layout, limits=hal.Limits(64, 6, 48, block_size=block_size))
    if kv_layout == "kv_fp8":
        for step, leaver in history:
            gqa_run.run_step(engine, step)
            engine.finish(leaver)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mla_runs, "choose_form", lambda *_: "absorbed")
        weights = mla_run.bind(engine)
        for step, leaver in history:
            mla_run.run_step(engine, weights, step)
            engine.finish(leaver)


@pytest.mark.parametrize(("shape", "kv_layout"), [(HEADS, "kv_fp8"), (ROWS, "latent_fp8"), (ROWS, "fp8_ds_mla")])
def test_an_engine_brings_storage_and_scales(shape: ModelShape, kv_layout: str, absorbed: None) -> None:
    engine = make_engine(shape, kv_layout)
    given, scales = {}, {}
    for spec in engine.plan.cache_specs():
        storage = spec.allocate(40)
        given[spec.key] = storage
        if spec.scale_shapes:
            scales[spec.key] = torch.full(spec.scale_shapes[-1], 0.02)
            given[spec.key] = storage, scales[spec.key]
    assert bool(scales) == (kv_layout != "fp8_ds_mla")
    engine.attention = engine.plan.bind(given)
    weights = mla_run.bind(engine) if shape is ROWS else {}
    for step in SCRIPT:
        if shape is ROWS:
            mla_run.run_step(engine, weights, step)
        else:
            gqa_run.run_step(engine, step)
    for key, scale in scales.items():
        assert engine.attention.caches[key].scale is scale


def test_scales_are_ones_until_they_are_set_and_set_in_place() -> None:
    engine = make_engine(HEADS, "kv_fp8")
    scale = engine.attention.caches[0].scale
    assert scale is not None
    assert scale.tolist() == [1, 1]
    engine.attention.set_scale(0, torch.tensor([2.0, 0.5]))
    assert engine.attention.caches[0].scale is scale
    assert scale.tolist() == [2, 0.5]


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=["per_part", "per_head"])
def test_scales_that_no_value_can_be_divided_by_are_refused(value: float, shape: tuple[int, ...]) -> None:
    engine = make_engine(HEADS, "kv_fp8")
    scale = torch.ones(shape)
    scale[-1] = value
    with pytest.raises(hal.LayoutError, match=f"scales of layer 0 are .*{value}.*above 0"):
        engine.attention.set_scale(0, scale)
    with pytest.raises(hal.LayoutError, match="on meta"):
        engine.attention.set_scale(0, torch.ones(shape, device="meta"))
    assert engine.attention.caches[0].scale.tolist() == [1, 1]


def test_scales_that_do_not_fit_are_refused() -> None:
    engine = make_engine(HEADS, "kv_fp8")
    wrongs: tuple[Any, ...] = (torch.ones(3), torch.ones(2, 3), torch.ones(2, dtype=torch.bfloat16), np.ones(2, np.float32), 0.5)
    for wrong in wrongs:
        with pytest.raises(hal.LayoutError, match="kv_fp8"):
            engine.attention.set_scale(0, wrong)
    with pytest.raises(hal.LayoutError, match="layer 2 has no cache with scales"):
        engine.attention.set_scale(2, torch.ones(2))
    plain = QuantisedEngine(HEADS)
    with pytest.raises(hal.LayoutError, match="layer 0 has no cache with scales"):
        plain.attention.set_scale(0, torch.ones(2))
    tensors = {spec.key: torch.zeros(spec.shape(8), dtype=torch.float8_e4m3fn) for spec in engine.plan.cache_specs()}
    with pytest.raises(hal.LayoutError, match=r"cache of 0.*needs scales float32 \[2\] or \[2, 2\].*got none"):
        engine.plan.bind(tensors)


WRONG_SCALES = [0.0, -1.0, float("nan"), float("inf")]


@pytest.mark.parametrize("value", WRONG_SCALES)
@pytest.mark.parametrize(("shape", "kv_layout"), [(HEADS, "kv_fp8"), (ROWS, "latent_fp8")])
def test_bound_scales_that_no_value_can_be_divided_by_are_refused(shape: ModelShape, kv_layout: str, value: float) -> None:
    plan = make_engine(shape, kv_layout).plan
    for spec in plan.cache_specs():
        for scale_shape in spec.scale_shapes:
            given = bound(plan)
            given[spec.key][1].resize_(scale_shape).fill_(1).view(-1)[-1] = value
            with pytest.raises(hal.LayoutError, match=f"cache of {spec.key}.*scales of .*{value}.*above 0"):
                plan.bind(given)


def bound(plan: hal.Plan) -> dict[Any, Any]:
    """Caches of an engine's own, with scales of ones where they lie outside."""
    tensors = {}
    for spec in plan.cache_specs():
        storage = spec.allocate(8)
        tensors[spec.key] = (storage, torch.ones(spec.scale_shapes[0])) if spec.scale_shapes else storage
    return tensors


@pytest.mark.parametrize("value", WRONG_SCALES)
def test_scales_that_an_engine_fills_later_are_counted_at_the_first_step(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_engine(HEADS, "kv_fp8").plan
    given = bound(plan)
    attention = plan.bind(given)
    given[0][1][1] = value
    for _ in range(2):
        attention.build(hal.Batch([1], [1], [[0]]))
    assert attention.wrong_scales == 1
    monkeypatch.setenv("HAL_DEBUG", "1")
    with pytest.raises(hal.BatchError, match=r"scales of the cache of 0 .*above 0"):
        attention.build(hal.Batch([1], [1], [[0]]))
    given[0][1][1] = 0.5
    attention.build(hal.Batch([1], [1], [[0]]))


@pytest.mark.parametrize("value", WRONG_SCALES)
def test_wherever_the_host_sees_such_scales_they_are_refused(value: float) -> None:
    """A cache made by hand, packing and unpacking, and every call on a bound cache whose scales turned bad."""
    plan = make_engine(HEADS, "kv_fp8").plan
    spec, good = plan.cache_specs()[0], torch.ones(plan.cache_specs()[0].scale_shapes[0])
    wrong, words = torch.full_like(good, value), f"scales of layout 'kv_fp8' are .*{value}.*above 0"
    with pytest.raises(hal.LayoutError, match=words):
        hal.KVCache(spec.allocate(2), spec.layout, spec.rows_per_page, spec.rows_per_page, wrong)
    parts = [torch.zeros(3, *part) for part in spec.layout.parts]
    with pytest.raises(hal.LayoutError, match=words):
        spec.layout.pack(parts, wrong)
    with pytest.raises(hal.LayoutError, match=words):
        spec.layout.unpack(spec.layout.pack(parts, good), wrong)
    cache = hal.KVCache(spec.allocate(2), spec.layout, spec.rows_per_page, spec.rows_per_page, good)
    good.fill_(value)
    before = cache.storage.clone()
    with pytest.raises(hal.LayoutError, match=words):
        hal.kernels("cpu").write_cache(cache, torch.arange(3), *parts)
    assert torch.equal(cache.storage.view(torch.uint8), before.view(torch.uint8))
