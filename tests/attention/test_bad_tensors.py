"""Tensors and calls that do not fit the layer or the step: a typed error with the shapes, and no cache written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hal

from .helpers.engine import Engine, snapshot, unchanged
from .helpers.shapes import INDEX_HEADS, INDEX_WIDTH, MLA, MLA_HEADS, gqa, mla, model, sparse

LAYERS = (
    gqa(0),
    gqa(1, kv_source=0),
    gqa(2, sink=True),
    mla(3),
    sparse(4, topk=5),
    sparse(5, topk=5, owns=False),
    mla(6, sink=True),
)
TOKENS = 3


@pytest.fixture
def engine() -> Engine:
    """One layer of each kind, weights bound, a step of three tokens."""
    engine = Engine(model(*LAYERS))
    for layer in LAYERS:
        if layer.mla is not None:
            w_uk, w_uv = engine.random(MLA_HEADS, 6, 12), engine.random(MLA_HEADS, 5, 12)
            engine.attention.bind_weights(layer.layer_id, w_uk, w_uv)
    return engine


def good(engine: Engine, layer_id: int) -> dict[str, Any]:
    """Arguments that fit."""
    layer = LAYERS[layer_id]
    if layer.mla is None:
        arguments: dict[str, Any] = {"q": engine.random(TOKENS, 4, 8), "k": None, "v": None}
        if layer.owns_kv:
            arguments |= {"k": engine.random(TOKENS, 2, 8), "v": engine.random(TOKENS, 2, 6)}
    else:
        arguments = {
            "q_nope": engine.random(TOKENS, MLA_HEADS, MLA.qk_nope_head_dim),
            "q_rope": engine.random(TOKENS, MLA_HEADS, MLA.qk_rope_head_dim),
            "latent": engine.random(TOKENS, MLA.kv_lora_rank),
            "k_rope": engine.random(TOKENS, MLA.qk_rope_head_dim),
        }
        if layer.indexer is not None and layer.indexer.owns:
            arguments["index"] = index_inputs(engine)
    if layer.sink:
        arguments["sink"] = torch.zeros(layer.num_heads)
    return arguments


def index_inputs(engine: Engine, **changes: torch.Tensor | None) -> hal.IndexInputs:
    parts = {
        "q": engine.random(TOKENS, INDEX_HEADS, INDEX_WIDTH),
        "k": engine.random(TOKENS, INDEX_WIDTH),
        "weights": engine.random(TOKENS, INDEX_HEADS),
    }
    return hal.IndexInputs(**(parts | changes))


def call(engine: Engine, layer_id: int, metadata: hal.StepMetadata, arguments: dict[str, Any]) -> torch.Tensor:
    attend = engine.attention.attend if LAYERS[layer_id].mla is None else engine.attention.attend_mla
    return attend(layer_id, metadata=metadata, **arguments)


Make = Callable[[Engine], dict[str, Any]]
CASES: dict[str, tuple[int, Make, list[str]]] = {
    "q_width": (0, lambda e: {"q": e.random(TOKENS, 4, 7)}, ["q", "[3, 4, 7]", "[3, 4, 8]"]),
    "q_tokens": (0, lambda e: {"q": e.random(2, 4, 8)}, ["q", "[2, 4, 8]", "[3, 4, 8]"]),
    "q_heads": (0, lambda e: {"q": e.random(TOKENS, 8, 8)}, ["q", "[3, 8, 8]", "[3, 4, 8]"]),
    "q_odd_heads": (0, lambda e: {"q": e.random(TOKENS, 3, 8)}, ["q", "[3, 3, 8]"]),
    "q_flat": (0, lambda e: {"q": e.random(TOKENS, 32)}, ["q", "[3, 32]", "[3, 4, 8]"]),
    "k_heads": (0, lambda e: {"k": e.random(TOKENS, 4, 8)}, ["k", "[3, 4, 8]", "[3, 2, 8]"]),
    "v_width": (0, lambda e: {"v": e.random(TOKENS, 2, 8)}, ["v", "[3, 2, 8]", "[3, 2, 6]"]),
    "no_k": (0, lambda _: {"k": None}, ["layer 0", "k"]),
    "no_v": (0, lambda _: {"v": None}, ["layer 0", "v"]),
    "kv_of_a_reader": (1, lambda e: {"k": e.random(TOKENS, 2, 8), "v": e.random(TOKENS, 2, 6)}, ["layer 1", "layer 0"]),
    "no_sink": (2, lambda _: {"sink": None}, ["layer 2", "sink"]),
    "sink_heads": (2, lambda _: {"sink": torch.zeros(3)}, ["sink", "[3]", "[4]"]),
    "unwanted_sink": (0, lambda _: {"sink": torch.zeros(4)}, ["layer 0", "sink"]),
    "no_q": (0, lambda _: {"q": None}, ["q is a NoneType", "[3, 4, 8]"]),
    "numpy_k": (0, lambda _: {"k": np.zeros((TOKENS, 2, 8), np.float32)}, ["k is a ndarray", "[3, 2, 8]"]),
    "sink_device": (2, lambda _: {"sink": torch.zeros(4, device="meta")}, ["sink", "meta", "cpu"]),
    "sink_dtype": (2, lambda _: {"sink": torch.zeros(4, dtype=torch.int32)}, ["sink", "int32", "floating"]),
    "numpy_sink": (2, lambda _: {"sink": np.zeros(4)}, ["sink is a ndarray", "[4]"]),
    "out_in_one_place": (0, lambda _: {"out": torch.empty(1, 4, 6).expand(TOKENS, 4, 6)}, ["out", "[0, 6, 1]"]),
    "out_shape": (0, lambda _: {"out": torch.empty(TOKENS, 4, 8)}, ["[3, 4, 8]", "[3, 4, 6]"]),
    "out_dtype": (0, lambda _: {"out": torch.empty(TOKENS, 4, 6, dtype=torch.float64)}, ["float64", "float32"]),
    "q_dtype": (0, lambda _: {"q": torch.zeros(TOKENS, 4, 8, dtype=torch.int64)}, ["q", "int64", "float32"]),
    "k_dtype": (0, lambda _: {"k": torch.zeros(TOKENS, 2, 8, dtype=torch.int64)}, ["k", "int64", "float32"]),
    "k_device": (0, lambda _: {"k": torch.zeros(TOKENS, 2, 8, device="meta")}, ["k", "meta", "cpu"]),
    "latent_width": (3, lambda e: {"latent": e.random(TOKENS, 11)}, ["latent", "[3, 11]", "[3, 12]"]),
    "k_rope_width": (3, lambda e: {"k_rope": e.random(TOKENS, 3)}, ["k_rope", "[3, 3]", "[3, 4]"]),
    "q_nope_width": (3, lambda e: {"q_nope": e.random(TOKENS, 3, 7)}, ["q_nope", "[3, 3, 7]", "[3, 3, 6]"]),
    "no_q_nope": (3, lambda _: {"q_nope": None}, ["layer 3", "q_nope", "NoneType", "[3, 3, 6]"]),
    "q_nope_of_no_dimension": (3, lambda _: {"q_nope": torch.tensor(1.0)}, ["q_nope", "[]", "[3, 3, 6]"]),
    "q_nope_of_lists": (3, lambda _: {"q_nope": [[1.0]]}, ["q_nope", "list", "[3, 3, 6]"]),
    "q_nope_heads": (3, lambda e: {"q_nope": e.random(TOKENS, 2, 6)}, ["2", "3"]),
    "q_rope_heads": (3, lambda e: {"q_rope": e.random(TOKENS, 2, 4)}, ["q_rope", "[3, 2, 4]", "[3, 3, 4]"]),
    "absorbed_heads": (3, lambda e: {"q_nope": e.random(TOKENS, 2, 12), "q_rope": e.random(TOKENS, 2, 4)}, ["2", "3"]),
    "mla_out": (3, lambda _: {"out": torch.empty(TOKENS, 3, 12)}, ["[3, 3, 12]", "[3, 3, 5]"]),
    "mla_dtype": (3, lambda _: {"latent": torch.zeros(TOKENS, 12, dtype=torch.int64)}, ["latent", "int64", "float32"]),
    "index_of_a_dense_layer": (3, lambda e: {"index": index_inputs(e)}, ["layer 3", "index"]),
    "choice_of_a_dense_layer": (3, lambda _: {"topk": torch.zeros(TOKENS, 5, dtype=torch.int32)}, ["layer 3", "topk"]),
    "no_index": (4, lambda _: {"index": None}, ["layer 4", "index"]),
    "index_q": (4, lambda e: {"index": index_inputs(e, q=e.random(TOKENS, 3, 4))}, ["index.q", "[3, 3, 4]", "[3, 2, 4]"]),
    "index_k": (4, lambda e: {"index": index_inputs(e, k=e.random(TOKENS, 5))}, ["index.k", "[3, 5]", "[3, 4]"]),
    "index_weights": (
        4,
        lambda e: {"index": index_inputs(e, weights=e.random(TOKENS, 3))},
        ["index.weights", "[3, 3]", "[3, 2]"],
    ),
    "index_in_a_tuple": (4, lambda e: {"index": tuple(index_inputs(e))}, ["index is a tuple", "IndexInputs"]),
    "index_without_keys": (4, lambda e: {"index": index_inputs(e, k=None)}, ["index.k is a NoneType", "[3, 4]"]),
    "index_device": (4, lambda e: {"index": index_inputs(e, weights=torch.zeros(TOKENS, 2, device="meta"))}, ["meta", "cpu"]),
    "choice_in_lists": (4, lambda _: {"topk": [[0] * 5] * TOKENS}, ["topk is a list", "[3, 5]"]),
    "choice_width": (4, lambda _: {"topk": torch.zeros(TOKENS, 6, dtype=torch.int32)}, ["topk", "[3, 6]", "[3, 5]"]),
    "choice_dtype": (4, lambda _: {"topk": torch.zeros(TOKENS, 5)}, ["topk", "float32", "int32"]),
    "sparse_out": (4, lambda _: {"out": torch.empty(TOKENS, 3, 4)}, ["[3, 3, 4]", "[3, 3, 5]"]),
    "index_of_a_sharing_layer": (5, lambda e: {"index": index_inputs(e)}, ["layer 5", "index"]),
    "no_choice_yet": (5, lambda _: {}, ["layer 5", "chosen"]),
    "mla_sink": (6, lambda _: {"sink": torch.zeros(5)}, ["sink", "[5]", "[3]"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_the_layer_or_the_step_is_refused_before_any_write(engine: Engine, name: str) -> None:
    layer_id, make, words = CASES[name]
    metadata = engine.attention.build(engine.schedule([(0, 2), (1, 1)]))
    before = snapshot(engine.attention)
    with pytest.raises((hal.LayoutError, hal.BatchError)) as error:
        call(engine, layer_id, metadata, good(engine, layer_id) | make(engine))
    assert [word for word in words if word not in str(error.value)] == []
    assert unchanged(engine.attention, before)


@pytest.mark.parametrize("given", [None, hal.Batch([3], [3], [[0]])], ids=["none", "a_batch"])
def test_metadata_is_what_build_returned(engine: Engine, given: Any) -> None:
    with pytest.raises(hal.BatchError, match=rf"{type(given).__name__}.*build\(\)"):
        call(engine, 0, given, good(engine, 0))


WEIGHTS: dict[str, tuple[Any, list[str]]] = {
    "shape": (torch.zeros(3, 5, 12), ["w_uk", "[3, 5, 12]", "[3, 6, 12]"]),
    "whole_numbers": (torch.zeros(3, 6, 12, dtype=torch.int64), ["w_uk", "int64", "floating"]),
    "elsewhere": (torch.zeros(3, 6, 12, device="meta"), ["w_uk", "meta", "cpu"]),
    "nothing": (None, ["w_uk is a NoneType", "[3, 6, 12]"]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_up_projections_that_do_not_fit(engine: Engine, name: str) -> None:
    given, words = WEIGHTS[name]
    with pytest.raises(hal.LayoutError) as error:
        engine.attention.bind_weights(3, given, torch.zeros(3, 5, 12))
    assert [word for word in words if word not in str(error.value)] == []


CACHES: dict[str, tuple[Callable[[dict[Any, torch.Tensor]], Any], str]] = {
    "a_list": (lambda caches: list(caches.values()), "caches is a list"),
    "nothing": (lambda _: None, "caches is a NoneType"),
    "numpy": (lambda caches: caches | {0: caches[0].numpy()}, "the cache of 0 is a ndarray"),
    "no_tensor": (lambda caches: caches | {0: None}, "the cache of 0 is a NoneType"),
    "no_pages": (lambda caches: caches | {0: torch.tensor(1.0)}, "the cache of 0 is a Tensor"),
    "too_many": (lambda caches: caches | {0: (caches[0], None, None)}, "the cache of 0 is a tuple"),
}


@pytest.mark.parametrize("name", CACHES)
def test_what_is_no_cache_is_not_bound(engine: Engine, name: str) -> None:
    make, words = CACHES[name]
    caches = {spec.key: spec.allocate(4) for spec in engine.plan.cache_specs()}
    with pytest.raises(hal.LayoutError, match=words):
        engine.plan.bind(make(caches))


@pytest.mark.parametrize("layer_id", range(len(LAYERS)))
def test_what_fits_the_layer_and_the_step_is_served(engine: Engine, layer_id: int) -> None:
    """Otherwise the arguments above might be refused for another reason."""
    metadata = engine.attention.build(engine.schedule([(0, 2), (1, 1)]))
    if layer_id == 5:
        call(engine, 4, metadata, good(engine, 4))
    assert call(engine, layer_id, metadata, good(engine, layer_id)).isfinite().all()


@pytest.mark.parametrize(("layer_id", "name"), [(0, "attend_mla"), (3, "attend")])
def test_a_layer_of_the_other_kind(engine: Engine, layer_id: int, name: str) -> None:
    metadata = engine.attention.build(engine.schedule([(0, 3)]))
    arguments = good(engine, 3 if name == "attend_mla" else 0)
    with pytest.raises(hal.BatchError, match=f"layer {layer_id}"):
        getattr(engine.attention, name)(layer_id, metadata=metadata, **arguments)


@pytest.mark.parametrize("layer_id", [99, -1, "0", None, 0.0], ids=repr)
def test_a_layer_that_is_not_there(engine: Engine, layer_id: Any) -> None:
    metadata = engine.attention.build(engine.schedule([(0, 3)]))
    with pytest.raises(IndexError, match=rf"layer {layer_id!r}.*0 to 6") as error:
        engine.attention.attend(layer_id, **good(engine, 0), metadata=metadata)
    assert isinstance(error.value, hal.HalError)
