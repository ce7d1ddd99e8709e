"""What every rank of a group does in turn; each function runs on all ranks at the same time and raises where one is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hal
from hal.common.errors import InputError
from hal.config import LayerShape
from tests.attention import gqa_run, mla_run
from tests.attention.mla_run import draw_choice
from tests.attention.shapes import gqa, mla, model, sparse

from .beside import RankEngine
from .cases import CASES, LAYERS, LIMITS, MIXED, Case

Check = Callable[[], None]
# More than any machine has, so that whatever is refused here was refused before anything was allocated.
TOO_MANY = 2**50


def list_checks(ranks: int) -> dict[str, Check]:
    """Everything that a group of so many ranks runs, by name, in order."""
    checks: dict[str, Check] = {name: partial(check_case, case) for name, case in CASES[ranks].items()}
    checks["sparse-handed_over"] = partial(check_handed_over, ranks)
    checks |= {f"refuses-{name}": partial(check_refused, ranks, name) for name in list_refusals(0, ranks)}
    checks |= {f"tensor_parallel-{kind}": partial(check_tensor_parallel, ranks, kind) for kind in ("gqa", "mla", "sparse")}
    return checks


def check_case(case: Case) -> None:
    """Every step of a case, on ranks and on one, against the definition."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group(list(range(first, first + case.dcp))) for first in range(0, ranks, case.dcp)]
    layers = LAYERS[case.kind]
    if case.dcp < ranks:
        layers = tuple(replace(layer, num_kv_heads=2) for layer in layers)
    parallel = hal.Parallel(
        tp=case.tp,
        tp_rank=rank if case.tp > 1 else 0,
        dcp=case.dcp,
        dcp_rank=rank % case.dcp,
        interleave=case.interleave,
    )
    arguments = {"dtype": "float64", "limits": LIMITS} | case.plan
    engine = RankEngine(
        model(*layers), parallel, group=pairs[rank // case.dcp], around=dist.group.WORLD, known=case.known, **arguments
    )
    weights = mla_run.bind(engine) if case.kind != "gqa" else {}
    for step in case.steps:
        if case.kind == "gqa":
            gqa_run.run_step(engine, step, **case.batch())
        else:
            mla_run.run_step(engine, weights, step, **case.batch())


def check_handed_over(ranks: int) -> None:
    """A choice of whole requests' positions, the same on every rank, of which each reads what it stores."""
    layers = LAYERS["sparse"]
    parallel = hal.Parallel(tp=ranks, tp_rank=dist.get_rank(), dcp=ranks, dcp_rank=dist.get_rank())
    world = dist.group.WORLD
    engine = RankEngine(model(*layers), parallel, group=world, around=world, dtype="float64", limits=LIMITS)
    weights = mla_run.bind(engine)
    for step in MIXED[:4]:
        metadata = engine.attention.build(engine.schedule(step))
        rows, choices = draw_choice(engine, step, layers[0].indexer.topk)
        mla_run.run_layer(engine, layers[0], weights[0], step, metadata, choices, topk=rows)
        mla_run.run_layer(engine, layers[1], weights[1], step, metadata, choices)


def check_tensor_parallel(ranks: int, kind: str) -> None:
    """Heads divided and nothing else: no group is needed, and outputs add up after each rank's part of the projection."""
    layers = {
        "gqa": (gqa(0, num_heads=4, num_kv_heads=2, window=6, sink=True),),
        "mla": LAYERS["mla"],
        "sparse": (sparse(0, num_heads=4, num_kv_heads=4), sparse(1, num_heads=4, num_kv_heads=4, owns=False)),
    }[kind]
    parallel = hal.Parallel(tp=ranks, tp_rank=dist.get_rank())
    engine = RankEngine(model(*layers), parallel, group=None, around=dist.group.WORLD, dtype="float64", limits=LIMITS)
    weights = mla_run.bind(engine) if kind != "gqa" else {}
    for step in MIXED:
        outputs = gqa_run.run_step(engine, step) if kind == "gqa" else mla_run.run_step(engine, weights, step)
        for whole in outputs.values():
            projection = torch.randn(
                whole.shape[1], whole.shape[2], 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
            )
            own = [tensor.chunk(ranks, dim)[dist.get_rank()] for tensor, dim in ((whole, 1), (projection, 0))]
            total = torch.einsum("thv,hvd->td", *own)
            dist.all_reduce(total)
            torch.testing.assert_close(total, torch.einsum("thv,hvd->td", whole, projection))


def check_refused(ranks: int, name: str) -> None:
    """Every rank raises, with the values, before anything is allocated."""
    words, layer, arguments, group = list_refusals(dist.get_rank(), ranks)[name]
    ours = {"dcp": ranks, "dcp_rank": dist.get_rank()} | arguments.pop("parallel", {})
    plan = hal.plan(model(layer), "cpu", **{"limits": LIMITS, "dtype": "float32", **arguments}, parallel=hal.Parallel(**ours))
    with pytest.raises(InputError, match=words):
        plan.open(TOO_MANY, group)
    caches = {spec.key: torch.zeros(spec.shape(2)) for spec in plan.cache_specs()}
    with pytest.raises(InputError, match=words):
        plan.bind(caches, group)


Refusal = tuple[str, LayerShape, dict[str, Any], Any]


def list_refusals(rank: int, ranks: int) -> dict[str, Refusal]:
    """Groups and plans that do not belong together: words of the error, a layer, the plan's arguments, the group."""
    world = dist.group.WORLD
    other_heads = mla(num_heads=8, num_kv_heads=8)
    return {
        "no_group": (f"dcp={ranks} and no DCP group", gqa(), {}, None),
        "a_group_for_one_rank": ("dcp=1", gqa(), {"parallel": {"dcp": 1, "dcp_rank": 0}}, world),
        "something_else": ("group is a int", gqa(), {}, 3),
        "another_size": (f"has {ranks} ranks.*dcp={2 * ranks}", gqa(), {"parallel": {"dcp": 2 * ranks}}, world),
        "ranks_in_another_order": ("rank i of the group", gqa(), {"parallel": {"dcp_rank": ranks - 1 - rank}}, world),
        "one_rank_twice": ("dcp_rank", gqa(), {"parallel": {"dcp_rank": 0}}, world),
        "other_limits": (
            "different models, limits",
            gqa(),
            {"limits": hal.Limits(64 + 64 * (rank == 1), 6, 48, block_size=4)},
            world,
        ),
        "other_models": ("different models", mla(window=7 + rank), {}, world),
        "scattered_heads": ("tp_rank", other_heads, {"parallel": {"tp": 8, "tp_rank": rank + 1}}, world),
        "kv_heads_of_its_own": ("2 KV heads", gqa(), {"parallel": {"tp": ranks, "tp_rank": rank}}, world),
    }
