"""Steps whose keys the engine has written itself: the same bits as where hal writes them, and nothing taken twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hal

from .helpers.engine import Engine, snapshot, unchanged
from .helpers.mla_run import bind
from .helpers.shapes import gqa, mla, model, sparse

STEPS = ([(0, 9), (1, 3)], [(0, 1), (1, 1)], [(1, 5), (0, 1)])
GROUPED = model(gqa(0), gqa(1, window=5), gqa(2, sink=True), gqa(3, kv_source=0))
LATENT = model(mla(0), sparse(1))
LIMITS = hal.Limits(256, 4, 160, block_size=16)


def write(engine: Engine, layer_id: int, metadata: hal.StepMetadata, *parts: torch.Tensor) -> None:
    """What an engine does: its own writer, at the slots that the metadata has."""
    group = next(spec.group for spec in engine.plan.cache_specs() if spec.key == layer_id)
    cache = engine.attention.caches[layer_id]
    hal.kernels("cpu").write_cache(cache, metadata.groups[group].slot_mapping, *parts)


@pytest.mark.parametrize("gives_out", [False, True], ids=["own_out", "given_out"])
def test_keys_written_by_the_engine_give_what_keys_written_by_hal_give(gives_out: bool) -> None:
    both = Engine(GROUPED), Engine(GROUPED)
    for step in STEPS:
        metadata = [engine.attention.build(engine.schedule(step)) for engine in both]
        tokens = sum(new for _, new in step)
        for layer in GROUPED.layers:
            q, k, v = both[0].random(tokens, 4, 8), both[0].random(tokens, 2, 8), both[0].random(tokens, 2, 6)
            sink = both[0].random(4) if layer.sink else None
            own = (k, v) if layer.owns_kv else (None, None)
            out = torch.full((tokens, 4, 6), torch.nan) if gives_out else None
            expected = both[0].attention.attend(layer.layer_id, q, *own, metadata[0], sink=sink)
            if layer.owns_kv:
                write(both[1], layer.layer_id, metadata[1], k, v)
            found = both[1].attention.attend(layer.layer_id, q, None, None, metadata[1], sink=sink, out=out, written=True)
            assert torch.equal(found, expected)
            assert out is None or found is out


@pytest.mark.parametrize("absorbs", [False, True], ids=["projected", "absorbed"])
def test_latents_written_by_the_engine_give_what_latents_written_by_hal_give(absorbs: bool) -> None:
    """Long prefills are decompressed from the inputs, and where those are in the cache alone from there."""
    both = Engine(LATENT, block_size=16, limits=LIMITS), Engine(LATENT, block_size=16, limits=LIMITS)
    for engine in () if absorbs else both:
        bind(engine)
    forms = set()
    for step in ([(0, 96), (1, 3)], [(0, 1), (1, 1)], [(1, 40), (0, 1)]):
        metadata = [engine.attention.build(engine.schedule(step)) for engine in both]
        forms |= {run.form for phase in metadata[0].phases for runs in phase.runs.values() for run in runs}
        tokens = sum(new for _, new in step)
        for layer in LATENT.layers:
            draw = both[0].random
            q_nope, q_rope = draw(tokens, 3, 12 if absorbs else 6), draw(tokens, 3, 4)
            latent, k_rope = draw(tokens, 12), draw(tokens, 4)
            index = None
            if layer.indexer is not None:
                index = hal.IndexInputs(draw(tokens, 2, 4), draw(tokens, 4), draw(tokens, 2))
            expected = both[0].attention.attend_mla(layer.layer_id, q_nope, q_rope, latent, k_rope, metadata[0], index=index)
            write(both[1], layer.layer_id, metadata[1], latent, k_rope)
            found = both[1].attention.attend_mla(
                layer.layer_id, q_nope, q_rope, None, None, metadata[1], index=index, written=True
            )
            assert torch.equal(found, expected)
    assert len(forms) == 2


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "keys_twice": ("attend", {"written": True}, "written already; k and v must be None"),
    "no_keys": ("attend", {"k": None, "v": None}, "needs both k and v .or written=True."),
    "one_of_both": ("attend", {"k": None, "written": True}, "k and v must be None"),
    "latents_twice": ("attend_mla", {"written": True}, "latent and k_rope must be None"),
    "no_latents": ("attend_mla", {"latent": None, "k_rope": None}, "latent is a NoneType"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_are_given_and_written_or_neither_are_refused_before_any_write(name: str) -> None:
    call, changes, words = REFUSED[name]
    engine = Engine(model(gqa(0)) if call == "attend" else model(mla(0)))
    if call == "attend_mla":
        bind(engine)
    metadata, before = engine.attention.build(engine.schedule([(0, 3)])), snapshot(engine.attention)
    shapes = {"q": (4, 8), "k": (2, 8), "v": (2, 6)}
    if call == "attend_mla":
        shapes = {"q_nope": (3, 6), "q_rope": (3, 4), "latent": (12,), "k_rope": (4,)}
    inputs = {each: engine.random(3, *shape) for each, shape in shapes.items()}
    with pytest.raises(hal.HalError, match=words):
        getattr(engine.attention, call)(0, metadata=metadata, **(inputs | changes))
    assert unchanged(engine.attention, before)
