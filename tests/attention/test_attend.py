"""attend against its definition over engine histories: GQA, windows, caps, sinks, shared KV, in every type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hal

from .helpers.engine import Engine
from .helpers.gqa_run import run_step
from .helpers.histories import BOUNDED, HISTORIES
from .helpers.shapes import gqa, model

KINDS = {
    "gqa": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "window": {"window": 3},
    "window_of_one": {"window": 1},
    "chunk": {"chunk": 5},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": True},
    "both_ways": {"causal": False},
    "window_both_ways": {"causal": False, "window": 3},
    "everything": {"window": 6, "softcap": 2.0, "sink": True},
}
SCRIPT = [
    [(0, 5), (1, 9)],
    [(1, 1), (0, 1), (2, 6)],
    [(2, 1), (3, 4), (0, 0), (1, 1)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
]


def play(engine: Engine, history, **batch) -> None:
    for step, leaver in history:
        run_step(engine, step, **batch)
        if leaver is not None:
            engine.finish(leaver)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_attend_gives_its_definition_in_every_type(kind: str, dtype: str) -> None:
    engine = Engine(model(gqa(**KINDS[kind])), dtype=dtype, seed=3)
    for step in SCRIPT:
        run_step(engine, step)


@BOUNDED
@given(
    history=HISTORIES,
    block_size=st.sampled_from([1, 2, 4, 16]),
    num_spec_tokens=st.integers(0, 3),
    masks=st.fixed_dictionaries(
        {
            "window": st.none() | st.integers(1, 9),
            "chunk": st.none() | st.integers(1, 9),
            "softcap": st.none() | st.just(2.0),
            "sink": st.booleans(),
        }
    ),
)
def test_attend_gives_its_definition_after_any_history(history, block_size: int, num_spec_tokens: int, masks: dict) -> None:
    shape = model(gqa(0, **masks), gqa(1, window=4, num_kv_heads=4), gqa(2, kv_source=0))
    play(Engine(shape, dtype="float64", block_size=block_size, num_spec_tokens=num_spec_tokens), history)


@BOUNDED
@given(history=HISTORIES, data=st.data())
def test_requests_that_are_still_prefilling_get_what_others_get(history, data) -> None:
    engine = Engine(model(gqa()), dtype="float64")
    for step, _ in history:
        flags = data.draw(st.lists(st.booleans(), min_size=len(step), max_size=len(step)))
        run_step(engine, step, is_prefilling=flags)


@pytest.mark.parametrize(
    "padding", [{"num_tokens_padded": 12}, {"num_tokens_padded": 12, "num_reqs_padded": 6}], ids=["tokens", "both"]
)
def test_padded_tokens_come_back_as_zeros_and_write_nothing(padding: dict) -> None:
    engine = Engine(model(gqa(), gqa(1, window=2, sink=True)), dtype="float64")
    run_step(engine, [(0, 4), (1, 2)])
    run_step(engine, [(1, 1), (0, 1), (2, 5)], **padding)
    run_step(engine, [(0, 1), (1, 1), (2, 1)], **padding)


@pytest.mark.parametrize("step", [[], [(0, 0)], [(0, 0), (1, 0)]], ids=["nobody", "one_idle", "two_idle"])
def test_attend_of_a_step_without_tokens_gives_none_and_changes_nothing(step: list[tuple[int, int]]) -> None:
    engine = Engine(model(gqa(sink=True)))
    run_step(engine, [(0, 3), (1, 2)])
    (out,) = run_step(engine, step).values()
    assert out.shape == (0, 4, 6)
    run_step(engine, [(1, 1), (0, 2)])


def test_a_page_handed_on_does_not_leak_its_old_tokens() -> None:
    engine = Engine(model(gqa()), num_blocks=3)
    run_step(engine, [(0, 12)])
    engine.finish(0)
    run_step(engine, [(1, 5), (2, 2)])
    run_step(engine, [(2, 1), (1, 1)])


def test_out_is_written_in_place() -> None:
    engine = Engine(model(gqa()))
    metadata = engine.attention.build(engine.schedule([(0, 2), (1, 5), (2, 1)]))
    q, k, v = engine.random(8, 4, 8), engine.random(8, 2, 8), engine.random(8, 2, 6)
    expected = engine.attention.attend(0, q, k, v, metadata)
    out = expected.new_full((8, 4, 6), float("nan"))
    assert engine.attention.attend(0, q, k, v, metadata, out=out) is out
    assert out.equal(expected)


def test_inputs_are_left_alone() -> None:
    engine = Engine(model(gqa()))
    metadata = engine.attention.build(engine.schedule([(0, 2), (1, 5), (2, 1)]))
    given_tensors = engine.random(8, 4, 8), engine.random(8, 2, 8), engine.random(8, 2, 6)
    copies = [tensor.clone() for tensor in given_tensors]
    engine.attention.attend(0, *given_tensors, metadata)
    assert all(tensor.equal(copy) for tensor, copy in zip(given_tensors, copies, strict=True))


def test_heads_of_a_rank_are_what_calls_take() -> None:
    """Two tensor-parallel ranks hold half the heads each; together they give what one rank gives."""
    shape = model(gqa(num_heads=4, num_kv_heads=2))
    whole = Engine(shape, dtype="float64", seed=5)
    step = [(0, 6), (1, 3)]
    metadata = whole.attention.build(whole.schedule(step))
    q, k, v = whole.random(9, 4, 8), whole.random(9, 2, 8), whole.random(9, 2, 6)
    expected = whole.attention.attend(0, q, k, v, metadata)
    for rank in range(2):
        part = Engine(shape, dtype="float64", parallel=hal.Parallel(tp=2, tp_rank=rank))
        metadata = part.attention.build(part.schedule(step))
        heads, kv = slice(2 * rank, 2 * rank + 2), slice(rank, rank + 1)
        out = part.attention.attend(0, q[:, heads], k[:, kv], v[:, kv], metadata)
        assert (out - expected[:, heads]).abs().max() < 1e-12
