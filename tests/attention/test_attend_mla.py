"""attend_mla against its definition over engine histories: dense, sparse and shared indexers, in both forms."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hal
from hal.common.stepping import phase_work
from hal.common.stepping import runs as mla_runs

from .helpers.engine import Engine
from .helpers.histories import BOUNDED, HISTORIES
from .helpers.mla_run import bind, run_step
from .helpers.shapes import mla, model, sparse

FORMS = ["absorbed", "decompressed", "cheaper", "alternating"]
PATCHED = settings(BOUNDED, suppress_health_check=[HealthCheck.function_scoped_fixture])
EVERY_KIND = model(
    mla(0), sparse(1, topk=5), sparse(2, topk=5, owns=False), sparse(3, topk=3), sparse(4, topk=3, owns=False), mla(5)
)
SCRIPT = [
    [(0, 5), (1, 9)],
    [(1, 1), (0, 1), (2, 6)],
    [(2, 1), (3, 4), (0, 0), (1, 1)],
    [(3, 7), (0, 1), (1, 1), (2, 8)],
]


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch):
    """Settles the form of MLA: one of them everywhere, or by request in turn."""
    cheaper = mla_runs.choose_form

    def choose(form: str) -> None:
        def choose_form(kind, query_len: int, seq_len: int, can_mask: bool) -> str:
            if form == "alternating":
                return "absorbed" if (query_len + seq_len) % 2 else "decompressed"
            return cheaper(kind, query_len, seq_len, can_mask) if form == "cheaper" else form

        monkeypatch.setattr(mla_runs, "choose_form", choose_form)

    return choose


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch):
    """Context is gathered a few pages at a time."""

    def install(pages: int) -> None:
        monkeypatch.setattr(phase_work, "context_rows", lambda _limits, block_size, *_: pages * block_size)

    return install


def play(engine: Engine, history, **batch) -> None:
    weights = bind(engine)
    for step, leaver in history:
        run_step(engine, weights, step, **batch)
        if leaver is not None:
            engine.finish(leaver)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_attend_mla_gives_its_definition_in_every_type(form: str, dtype: str, force) -> None:
    force(form)
    play(Engine(EVERY_KIND, dtype=dtype, seed=2), [(step, None) for step in SCRIPT])


@PATCHED
@given(history=HISTORIES, form=st.sampled_from(FORMS), block_size=st.sampled_from([1, 2, 4, 16]), spec=st.integers(0, 2))
def test_attend_mla_gives_its_definition_after_any_history(history, form: str, block_size: int, spec: int, force) -> None:
    force(form)
    play(Engine(EVERY_KIND, dtype="float64", block_size=block_size, num_spec_tokens=spec), history)


@PATCHED
@given(history=HISTORIES, form=st.sampled_from(FORMS), pages=st.integers(1, 3), block_size=st.sampled_from([1, 2, 4]))
def test_context_in_small_chunks_gives_the_definition(
    history, form: str, pages: int, block_size: int, force, small_chunks
) -> None:
    force(form)
    small_chunks(pages)
    play(Engine(EVERY_KIND, dtype="float64", block_size=block_size), history)


def test_small_chunks_are_really_used(small_chunks, force) -> None:
    """Otherwise the test above would not be about chunks."""
    force("decompressed")
    small_chunks(1)
    engine = Engine(model(mla()), dtype="float64")
    weights = bind(engine)
    run_step(engine, weights, [(0, 11), (1, 6)])
    metadata = engine.attention.build(engine.schedule([(0, 5), (1, 3)]))
    (run,) = next(iter(metadata.prefill.runs.values()))
    assert [chunk.num_keys for chunk in run.context] == [4, 4, 3, 4, 2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layer", [mla(sink=True), sparse(sink=True)], ids=["dense", "sparse"])
def test_a_sink_is_applied_once_after_every_chunk(layer, form: str, force, small_chunks) -> None:
    force(form)
    small_chunks(1)
    play(Engine(model(layer), dtype="float64"), [(step, None) for step in SCRIPT])


MASKED = {
    "window": mla(window=3),
    "softcap": mla(softcap=1.5),
    "chunk": mla(chunk=4),
    "both_ways": mla(causal=False),
    "sparse_window": sparse(window=4),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_is_served_holds_in_every_form(name: str, form: str, force) -> None:
    layer = MASKED[name]
    if hal.supports_combination(hal.Request(layer, hal.Device.from_arch("cpu"), "float64"))["cpu"]:
        return  # refused with a reason, which is as right
    force(form)
    play(Engine(model(layer), dtype="float64"), [(step, None) for step in SCRIPT])


@pytest.mark.parametrize("logits", [4 * 64, 4 * 70, 4 * 1000])
def test_scores_in_small_pieces_choose_the_same_keys(logits: int) -> None:
    limits = hal.Limits(64, 6, 48, block_size=4, max_logits_bytes=logits)
    play(Engine(EVERY_KIND, dtype="float64", limits=limits), [(step, None) for step in SCRIPT])


@pytest.mark.parametrize("step", [[], [(0, 0)], [(0, 0), (1, 0)]], ids=["nobody", "one_idle", "two_idle"])
def test_attend_mla_of_a_step_without_tokens_gives_none_and_changes_nothing(step: list[tuple[int, int]]) -> None:
    engine = Engine(EVERY_KIND)
    weights = bind(engine)
    run_step(engine, weights, [(0, 3), (1, 8)])
    assert all(out.shape == (0, 3, 5) for out in run_step(engine, weights, step).values())
    run_step(engine, weights, [(1, 1), (0, 9)])
