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
from hal.common.contract import exchanges
from hal.common.contract.errors import InputError
from hal.common.running import latent
from hal.common.stepping import runs as mla_runs
from hal.config import LayerShape
from tests.attention.helpers import gqa_run, mla_run
from tests.attention.helpers.mla_run import draw_choice
from tests.attention.helpers.shapes import INDEX_HEADS, INDEX_WIDTH, MLA, gqa, mla, model, sparse
from tests.attention.helpers.window_engine import WindowEngine

from .beside import RankEngine
from .cases import CASES, LAYERS, LIMITS, MIXED, Case

Check = Callable[[], None]
# More than any machine has, so that whatever is refused here was refused before anything was allocated.
TOO_MANY = 2**50


def list_checks(ranks: int) -> dict[str, Check]:
    """Everything that a group of so many ranks runs, by name, in order."""
    checks: dict[str, Check] = {name: partial(check_case, case) for name, case in CASES[ranks].items()}
    checks["sparse-handed_over"] = partial(check_handed_over, ranks)
    checks |= {f"quantised-{kind}-{layout}": partial(check_quantised, ranks, kind, layout) for kind, layout in QUANTISED}
    pieces = {f"{each.kind}-tp{each.tp}": each for each in CASES[ranks].values() if each.kind != "gqa"}
    checks |= {f"in_pieces-{name}": partial(check_pieces, case) for name, case in pieces.items()}
    checks["freed_pages"] = partial(check_freed_pages, ranks)
    checks["nan_on_one_rank"] = partial(check_nan, ranks)
    checks |= {f"refuses-{name}": partial(check_refused, ranks, name) for name in list_refusals(0, ranks)}
    checks |= {f"tensor_parallel-{kind}": partial(check_tensor_parallel, ranks, kind) for kind in ("gqa", "mla", "sparse")}
    return checks


def check_case(case: Case) -> None:
    """Every step of a case, on ranks and on one, against the definition."""
    rank, ranks, dcp = dist.get_rank(), dist.get_world_size(), case.dcp
    sharing = [dist.new_group(list(range(first, first + dcp))) for first in range(0, ranks, dcp)]
    # Ranks that divide heads: all of them, or one of each group that has the same ones.
    across, tp_rank = dist.group.WORLD, rank if case.tp == ranks else rank // dcp
    if 1 < case.tp < ranks:
        across = [dist.new_group(list(range(first, ranks, dcp))) for first in range(dcp)][rank % dcp]
    layers = LAYERS[case.kind]
    if dcp < ranks:
        layers = tuple(replace(layer, num_kv_heads=2) for layer in layers)
    parallel = hal.Parallel(tp=case.tp, tp_rank=tp_rank, dcp=dcp, dcp_rank=rank % dcp, interleave=case.interleave)
    arguments = {"dtype": "float64", "limits": LIMITS} | case.plan
    engine = RankEngine(model(*layers), parallel, group=sharing[rank // dcp], around=across, known=case.known, **arguments)
    weights = mla_run.bind(engine) if case.kind != "gqa" else {}
    for step in case.steps:
        if case.kind == "gqa":
            gqa_run.run_step(engine, step, **case.batch())
        else:
            mla_run.run_step(engine, weights, step, **case.batch())


def check_pieces(case: Case) -> None:
    """A case whose queries, results and candidates go head by head and token by token."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MAX_PARTIAL_BYTES", "MAX_CANDIDATE_BYTES"):
            patch.setattr(exchanges, name, 1)
        patch.setattr(latent, "heads_at_once", lambda *given: seen.append(exchanges.heads_at_once(*given)) or seen[-1])
        check_case(case)
    assert seen
    assert set(seen) == {1}


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


QUANTISED = (("gqa", "kv_fp8"), ("mla", "latent_fp8"), ("sparse", "latent_fp8"))


def check_quantised(ranks: int, kind: str, layout: str) -> None:
    """Ranks that keep quantised rows read what one rank reads; that one is held to the absorbed form, which reads as much."""
    parallel = hal.Parallel(tp=ranks, tp_rank=dist.get_rank(), dcp=ranks, dcp_rank=dist.get_rank(), interleave=2)
    world, layers = dist.group.WORLD, LAYERS[kind]
    engine = RankEngine(model(*layers), parallel, group=world, around=world, dtype="float32", limits=LIMITS, kv_layout=layout)
    if kind != "gqa":
        mla_run.bind(engine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mla_runs, "choose_form", lambda *_: "absorbed")
        for step in MIXED[:5]:
            metadata = engine.attention.build(engine.schedule(step))
            for layer in layers:
                _attend(engine, layer, metadata)


def _attend(engine: RankEngine, layer: LayerShape, metadata: hal.StepMetadata) -> None:
    """One layer of a step with random inputs; the engine's attention compares."""
    draw, tokens = partial(engine.random, metadata.num_tokens), metadata.num_tokens
    sink = torch.zeros(layer.num_heads) if layer.sink else None
    if layer.mla is None:
        kv = (draw(layer.num_kv_heads, 8), draw(layer.num_kv_heads, 6)) if layer.owns_kv else (None, None)
        engine.attention.attend(layer.layer_id, draw(layer.num_heads, 8), *kv, metadata, sink=sink)
        return
    index = None
    if layer.indexer is not None and layer.indexer.owns:
        # Powers of two survive quantisation, so that scores stay exact and often equal.
        keys = engine.integers(0, 1, tokens, INDEX_WIDTH) * 2
        index = hal.IndexInputs(
            engine.integers(-2, 2, tokens, INDEX_HEADS, INDEX_WIDTH), keys, engine.integers(-2, 2, tokens, INDEX_HEADS)
        )
    queries = draw(layer.num_heads, MLA.qk_nope_head_dim), draw(layer.num_heads, MLA.qk_rope_head_dim)
    latents = draw(MLA.kv_lora_rank), draw(MLA.qk_rope_head_dim)
    engine.attention.attend_mla(layer.layer_id, *queries, *latents, metadata, index=index, sink=sink)


class WindowRankEngine(WindowEngine, RankEngine):
    """A rank whose groups have pools of their own."""


def check_freed_pages(ranks: int) -> None:
    """What lies behind a window is freed on every rank, since a column of a table is a page on each."""
    layers = (gqa(0, num_kv_heads=1), gqa(1, num_kv_heads=1, window=6), gqa(2, num_kv_heads=1, window=6, sink=True))
    parallel = hal.Parallel(dcp=ranks, dcp_rank=dist.get_rank())
    world = dist.group.WORLD
    limits = hal.Limits(64, 6, 48, block_size=2)
    engine = WindowRankEngine(
        model(*layers), (64, 24), parallel=parallel, group=world, around=world, dtype="float64", limits=limits
    )
    for step in ([(0, 19), (1, 3)], [(0, 1), (1, 8)], [(1, 1), (0, 1), (2, 9)], [(2, 5), (0, 9), (1, 17)], [(0, 1), (1, 1)]):
        gqa_run.run_step(engine, step)
    assert engine.num_freed > 0


def check_nan(ranks: int) -> None:
    """A NaN key lies on one rank; every rank counts the tokens that see it, and raises where that is asked for."""
    layer = sparse(0, topk=3)
    parallel = hal.Parallel(dcp=ranks, dcp_rank=dist.get_rank())
    plan = hal.plan(model(layer), "cpu", limits=LIMITS, dtype="float64", parallel=parallel)
    attention = plan.open(4, dist.group.WORLD)
    attention.bind_weights(0, torch.ones(3, 6, 12, dtype=torch.float64), torch.ones(3, 5, 12, dtype=torch.float64))

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(9, *shape, dtype=torch.float64)

    keys = ones(INDEX_WIDTH)
    keys[4] = torch.nan
    index = hal.IndexInputs(ones(INDEX_HEADS, INDEX_WIDTH), keys, ones(INDEX_HEADS))
    inputs = ones(3, 6), ones(3, 4), ones(12), ones(4)
    attention.attend_mla(0, *inputs, attention.build(hal.Batch([9], [9], [[0, 1, 2]])), index=index)
    assert attention.nan_scores == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAL_DEBUG", "1")
        with pytest.raises(hal.BatchError, match="token 4 hold NaN"):
            attention.attend_mla(0, *inputs, attention.build(hal.Batch([9], [9], [[0, 1, 2]])), index=index)


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
