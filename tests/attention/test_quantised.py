"""Quantised caches through attend, attend_mla and attend_compressed: the definition over what the bytes decode to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common import mla_runs
from hal.config import ModelShape

from . import gqa_run, mla_run
from .histories import BOUNDED, HISTORIES
from .quantised_run import QuantisedEngine
from .shapes import gqa, mla, model, sparse

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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fp8", VARIANTS)
def test_heads(fp8: str, dtype: str) -> None:
    engine = make_engine(HEADS, "kv_fp8", fp8, dtype)
    for layer_id, scale in ((0, torch.tensor([0.02, 0.03])), (1, torch.rand(2, 2) * 0.01 + 0.01)):
        engine.attention.set_scale(layer_id, scale)
    for step in SCRIPT:
        gqa_run.run_step(engine, step)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fp8", VARIANTS)
@pytest.mark.parametrize("kv_layout", LATENTS)
def test_latents(kv_layout: str, fp8: str, dtype: str, absorbed: None) -> None:
    engine = make_engine(ROWS, kv_layout, fp8, dtype)
    if kv_layout == "latent_fp8":
        engine.attention.set_scale(0, torch.tensor([0.03]))
    weights = mla_run.bind(engine)
    for step in SCRIPT:
        mla_run.run_step(engine, weights, step)


@settings(BOUNDED, max_examples=6)
@given(history=HISTORIES, block_size=st.sampled_from([1, 4, 16]), kv_layout=st.sampled_from(["kv_fp8", *LATENTS]))
def test_any_history(history, block_size: int, kv_layout: str) -> None:
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
