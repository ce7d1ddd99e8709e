"""Requests whose window groups give pages back: nobody reads what was freed, whoever has the page now."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers.compressed_run import layers
from .helpers.compressed_run import run_step as run_compressed_step
from .helpers.engine import Engine, Running, Step
from .helpers.gqa_run import run_step
from .helpers.mla_run import bind
from .helpers.mla_run import run_step as run_mla_step
from .helpers.shapes import gqa, mla, model
from .helpers.window_engine import WindowEngine

SHAPES = {
    "gqa": model(gqa(0), gqa(1, window=6), gqa(2, window=1), gqa(3, window=6, kv_source=2), gqa(4, window=6, sink=True)),
    "mla": model(mla(0), mla(1, window=7)),
    "windows_alone": model(gqa(0, window=6), gqa(1, window=9)),
    "compressed": model(*layers()),
}
PAGES = {"compressed": 8}
SCRIPT: list[Step] = [
    [(0, 19), (1, 3)],
    [(0, 1), (1, 8)],
    [(1, 1), (0, 1), (2, 9)],
    [(2, 5), (0, 1), (1, 7)],
    [(0, 1), (1, 1), (2, 1)],
    [(2, 11), (3, 4), (0, 2), (1, 1)],
]


def run(engine: Engine, weights: Any, step: Step, **arguments: Any) -> None:
    if engine.shape.layers[0].kind == "compressed":
        run_compressed_step(engine, step, **arguments)
    elif weights:
        run_mla_step(engine, weights, step, **arguments)
    else:
        run_step(engine, step, **arguments)


def to_device(batch: hal.Batch) -> Any:
    queries, lengths = batch.query_lens.tolist(), batch.seq_lens.tolist()
    return hal.Batch.from_device(
        torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        [torch.from_numpy(table.copy()) for table in batch.block_tables],
        num_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
        num_decodes=0,
    )


@pytest.mark.parametrize("to_batch", [None, to_device], ids=["from_host", "from_device"])
@pytest.mark.parametrize("kind", SHAPES)
def test_every_step_gives_what_the_definition_gives(kind: str, to_batch: Any) -> None:
    groups = len(Engine(SHAPES[kind], block_size=PAGES.get(kind, 4)).plan.groups)
    engine = WindowEngine(SHAPES[kind], (24,) * groups, dtype="float64", block_size=PAGES.get(kind, 4))
    weights = bind(engine) if SHAPES[kind].is_mla else {}
    for step in SCRIPT:
        run(engine, weights, step, to_batch=to_batch)
    assert engine.num_freed >= 7
    assert engine.attention.lost_pages == engine.attention.lost_tokens == 0
    for pages in engine.held.values():
        pages.free()
    assert all(pool.num_free == pool.num_pages for pool in engine.attention.pools)


def test_one_pool_of_window_groups_frees_what_the_widest_has_passed() -> None:
    engine = WindowEngine(SHAPES["windows_alone"], 24, dtype="float64")
    for step in SCRIPT:
        run(engine, {}, step)
    assert engine.num_freed >= 7


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_the_planned_figure_is_enough_for_the_longest_requests(kind: str) -> None:
    """Six requests of full length through pools of exactly blocks_per_group() pages."""
    limits = hal.Limits(48, 6, 12, block_size=4)
    shape = SHAPES[kind]
    engine = WindowEngine(
        shape, hal.plan(shape, "cpu", limits=limits, dtype="float64").blocks_per_group(), dtype="float64", limits=limits
    )
    sizes = [pool.num_pages for pool in engine.attention.pools]
    assert min(sizes) < max(sizes) == 6 * 12
    weights = bind(engine) if shape.is_mla else {}
    random = np.random.default_rng(0)
    while any(engine.requests.get(name, Running()).length < 48 for name in range(6)):
        shares = random.multinomial(12, random.dirichlet(np.ones(6)))
        lengths = [engine.requests.get(name, Running()).length for name in range(6)]
        step = [(name, min(int(new), 48 - lengths[name])) for name, new in enumerate(shares)]
        if any(new for _, new in step):
            run(engine, weights, [(name, new) for name, new in step if new])
