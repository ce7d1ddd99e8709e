"""Pages that several requests hold: a shared prefix is computed once and read by all."""

from __future__ import annotations

import pytest

from .helpers.engine import Engine, Running
from .helpers.gqa_run import run_step
from .helpers.shapes import gqa, model


@pytest.fixture
def engine() -> Engine:
    """One request of three pages and a token, whose first two pages a second request shares."""
    engine = Engine(model(gqa(0), gqa(1, window=3)), dtype="float64", num_blocks=12)
    run_step(engine, [(0, 13)])
    first = engine.requests[0]
    prefix = engine.attention.pages.share(first.pages[:2])
    engine.requests[1] = Running(length=8, pages=list(prefix), cached={key: [rows[0][:8]] for key, rows in first.cached.items()})
    return engine


def test_two_requests_read_a_shared_prefix_and_go_their_own_ways(engine: Engine) -> None:
    run_step(engine, [(1, 3), (0, 1)])
    run_step(engine, [(0, 2), (1, 1)])
    assert engine.requests[0].pages[:2] == engine.requests[1].pages[:2]
    assert not set(engine.requests[0].pages[2:]) & set(engine.requests[1].pages[2:])


def test_the_prefix_outlives_whoever_made_it(engine: Engine) -> None:
    engine.finish(0)
    assert engine.attention.pages.num_free == 12 - 2
    run_step(engine, [(2, 20)])
    run_step(engine, [(1, 3)])
    engine.finish(1)
    engine.finish(2)
    assert engine.attention.pages.num_free == 12
