"""The order an engine keeps its requests in changes nothing but speed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hal

from .helpers.engine import Engine
from .helpers.histories import BOUNDED, steps
from .helpers.shapes import INDEX_HEADS, INDEX_WIDTH, MLA, MLA_HEADS, gqa, mla, model, sparse

CONTEXT = ((0, 5), (1, 1), (2, 9), (3, 0))
LAYERS = {"gqa": gqa(window=6), "mla": mla(), "sparse": sparse(topk=3)}


def attend(engine: Engine, step, inputs: dict[int, dict[str, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Each request's output for inputs given by request."""
    metadata = engine.attention.build(engine.schedule(step))
    layer = engine.shape.layers[0]
    parts = {name: torch.cat([inputs[request][name][:new] for request, new in step]) for name in inputs[0]} if step else {}
    if not step:
        return {}
    if layer.mla is None:
        out = engine.attention.attend(0, parts["q"], parts["k"], parts["v"], metadata)
    else:
        index = hal.IndexInputs(parts["iq"], parts["ik"], parts["iw"]) if layer.indexer else None
        out = engine.attention.attend_mla(
            0, parts["nope"], parts["q_rope"], parts["latent"], parts["rope"], metadata, index=index
        )
    return dict(zip([request for request, _ in step], out.split([new for _, new in step]), strict=True))


def make_inputs(seed: int) -> dict[int, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    widths = {
        "q": (4, 8),
        "k": (2, 8),
        "v": (2, 6),
        "nope": (MLA_HEADS, MLA.qk_nope_head_dim),
        "q_rope": (MLA_HEADS, MLA.qk_rope_head_dim),
        "latent": (MLA.kv_lora_rank,),
        "rope": (MLA.qk_rope_head_dim,),
        "iq": (INDEX_HEADS, INDEX_WIDTH),
        "ik": (INDEX_WIDTH,),
        "iw": (INDEX_HEADS,),
    }
    return {
        request: {name: torch.randn(9, *width, generator=generator, dtype=torch.float64) for name, width in widths.items()}
        for request in range(4)
    }


def opened(kind: str) -> Engine:
    engine = Engine(model(LAYERS[kind]), dtype="float64")
    if kind != "gqa":
        weights = torch.Generator().manual_seed(1)
        shapes = (MLA_HEADS, MLA.qk_nope_head_dim, MLA.kv_lora_rank), (MLA_HEADS, MLA.v_head_dim, MLA.kv_lora_rank)
        engine.attention.bind_weights(0, *(torch.randn(shape, generator=weights, dtype=torch.float64) for shape in shapes))
    return engine


@pytest.mark.parametrize("kind", LAYERS)
@BOUNDED
@given(step=steps(), seed=st.integers(0, 2**31))
def test_any_order_of_requests_gives_each_the_same_result(kind: str, step, seed: int) -> None:
    results = []
    for arrange in (list, lambda members: [members[i] for i in _order(members)], lambda members: members[::-1]):
        engine = opened(kind)
        attend(engine, arrange(list(CONTEXT)), make_inputs(seed))
        results.append(attend(engine, arrange(list(step)), make_inputs(seed + 1)))
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for request, out in results[0].items():
            torch.testing.assert_close(other[request], out, atol=1e-11, rtol=1e-11)


def _order(members) -> list[int]:
    lengths = [new for _, new in members]
    return hal.Batch(lengths, lengths, [[0, 0, 0]] * len(members) if members else []).order().tolist()


def test_decodes_first_moves_nothing() -> None:
    engine = opened("gqa")
    attend(engine, CONTEXT, make_inputs(0))
    assert engine.attention.build(engine.schedule([(1, 1), (0, 1), (2, 4)])).token_order is None
    order = engine.attention.build(engine.schedule([(2, 4), (1, 1), (0, 1)])).token_order
    assert order.tolist() == [4, 5, 0, 1, 2, 3]
