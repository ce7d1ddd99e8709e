"""Warming up: what compiles is listed, compiled once, and a launch outside the list is noticed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hal
from hal.common.backends import registry
from hal.testing import ReferenceBackend

from .helpers.shapes import gqa, model

LIMITS = hal.Limits(64, 2, 16, block_size=4)


class Compiling(ReferenceBackend):
    """A backend whose attention compiles once per number of query tokens; it plans for one and for two."""

    name = "cpu:compiling"
    capabilities = replace(ReferenceBackend.capabilities, compiled_launches=True, rank={"*": -1})

    def __init__(self, device: hal.Device) -> None:
        super().__init__(device)
        self.compiled: list[hal.Request] = []
        self.watchers: list[Callable[[Hashable], None]] = []

    @classmethod
    def list_launches(cls, request: hal.Request) -> tuple[Hashable, ...]:
        return (("attend", request.layer.head_dim, 1), ("attend", request.layer.head_dim, 2))

    def compile_launches(self, request: hal.Request) -> None:
        self.compiled.append(request)

    def watch_launches(self, watcher: Callable[[Hashable], None]) -> None:
        self.watchers.append(watcher)

    def paged_attention(self, q: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        for watcher in self.watchers:
            watcher(("attend", q.shape[2], q.shape[0]))
        return super().paged_attention(q, *arguments, **keywords)


class Silent(Compiling):
    """Promises compiled launches and lists none."""

    name = "cpu:silent"

    @classmethod
    def list_launches(cls, request: hal.Request) -> tuple[Hashable, ...]:
        return ()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> hal.Plan:
    registry.backends()
    monkeypatch.setattr(registry._registry, "backends", dict(registry._registry.backends))
    hal.register_backend(Compiling)
    hal.register_backend(Silent)
    return hal.plan(model(gqa(0), gqa(1)), "cpu", limits=LIMITS, dtype="float64", backend="cpu:compiling")


def attend(attention: hal.Attention, tokens: int) -> torch.Tensor:
    metadata = attention.build(hal.Batch([tokens], [tokens], np.zeros((1, 16), np.int32) + np.arange(16, dtype=np.int32)))
    draw = [torch.randn(tokens, heads, width, dtype=torch.float64) for heads, width in ((4, 8), (2, 8), (2, 6))]
    return attention.attend(0, *draw, metadata)


def test_the_list_has_each_key_once(plan: hal.Plan) -> None:
    assert plan.warmup_keys() == (("attend", 8, 1), ("attend", 8, 2))


def test_a_plan_without_compiled_launches_lists_nothing() -> None:
    attention = hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64").open(16)
    assert attention.plan.warmup_keys() == ()
    attention.warm_up()
    attend(attention, 5)
    assert attention.compile_misses == 0


def test_a_planned_launch_is_no_miss_and_another_is(plan: hal.Plan, caplog: pytest.LogCaptureFixture) -> None:
    attention = plan.open(16)
    attend(attention, 5)
    attention.warm_up()
    for tokens in (1, 2, 1):
        attend(attention, tokens)
    assert attention.compile_misses == 0
    for _ in range(2):
        attend(attention, 3)
    assert attention.compile_misses == 2
    assert [record.getMessage().count("('attend', 8, 3)") for record in caplog.records] == [1]


def test_warming_up_twice_counts_each_miss_once(plan: hal.Plan) -> None:
    attention = plan.open(16)
    attention.warm_up()
    attention.warm_up()
    attend(attention, 3)
    assert attention.compile_misses == 1


def test_strict_warmup_raises_before_the_launch(plan: hal.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = plan.open(16)
    attention.warm_up()
    monkeypatch.setenv("HAL_STRICT_WARMUP", "1")
    with pytest.raises(hal.BackendError, match=r"\('attend', 8, 3\)"):
        attend(attention, 3)


def test_an_empty_list_of_a_compiling_backend_is_an_error(plan: hal.Plan) -> None:
    silent = hal.plan(plan.shape, "cpu", limits=LIMITS, dtype="float64", backend="cpu:silent")
    with pytest.raises(hal.BackendError, match="cpu:silent"):
        silent.warmup_keys()
