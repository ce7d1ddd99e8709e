"""The parts that a split call makes: never more than the plan counts, which needs neither an accelerator nor a compiler."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.backends.registry import find_backend
from hal.common.contract.masking import CAUSAL
from hal.common.triton.attend import Keys, Queries
from hal.common.triton.attend import plan_parts as plan_attend_parts
from hal.common.triton.backend import TritonBackend
from hal.common.triton.fitting import needed_tiles
from hal.common.triton.sparse import plan_parts as plan_sparse_parts
from hal.common.triton.stand_in import stand_in
from hal.common.triton.tiles import Tile, Widths, choose_tile, read_machine
from hal.config import LayerShape, ModelShape

from .helpers.layers import ARCHS, dense_layer, sparse_layer

LAYERS = {"dense": dense_layer(), "wide": dense_layer(256), "sparse": sparse_layer(), "few-heads": sparse_layer(16)}


def make_plan(platform: str, arch: str, layer: LayerShape, limits: hal.Limits) -> hal.Plan:
    """A one-layer model on the portable backend."""
    shape = ModelShape(
        model_type="made_up",
        architectures=(),
        text_path="",
        hidden_size=4096,
        vocab_size=1000,
        num_layers=1,
        max_position_embeddings=1 << 20,
        dtype="bfloat16",
        tie_word_embeddings=False,
        layers=(layer,),
    )
    device = hal.Device.from_arch(f"{platform}:{arch}")
    return hal.plan(shape, device, limits=limits, backend=f"{platform}:triton", software=hal.Software({}))


def count_attend_parts(plan: hal.Plan, kernel: str, widths: Widths, tokens: int, requests: int, longest: tuple[int, int]) -> int:
    """Elements of the parts of one attention call, 0 where it is not split."""
    (layer,), machine = plan.shape.layers, machine_of(plan)
    heads, kv_heads = layer.num_heads, 1 if kernel == "latent" else layer.num_kv_heads
    max_len, max_length = longest
    tile = choose_tile(machine, kernel, widths, plan.dtype, max_len * (heads // kv_heads))
    assert isinstance(tile, Tile)
    value = widths.value or widths.main
    queries = Queries(q=stand_in(plan.dtype, tokens, heads, 8), start_loc=None, num_requests=requests, max_len=max_len)
    strides = dict.fromkeys(("k_row", "k_head", "v_row", "v_head"), 1)
    call = {"call": kernel, "k": None, "v": None, "lengths": None, **strides}
    keys = Keys(kv_heads=kv_heads, widths=widths, value=value, max_length=max_length, **call)
    parts = plan_attend_parts(machine, tile, queries, keys, CAUSAL)
    return 0 if parts == 1 else parts * tokens * heads * (value + 1)


def count_sparse_parts(plan: hal.Plan, widths: Widths, tokens: int) -> int:
    """Elements of the parts of one call over chosen rows, 0 where it is not split."""
    (layer,), machine = plan.shape.layers, machine_of(plan)
    assert layer.indexer is not None
    tile = choose_tile(machine, "sparse", widths, plan.dtype, layer.num_heads)
    assert isinstance(tile, Tile)
    parts = plan_sparse_parts(machine, tile, tokens, layer.num_heads, layer.indexer.width)
    return 0 if parts == 1 else parts * tokens * layer.num_heads * (widths.main + 1)


def machine_of(plan: hal.Plan):
    (selection,) = plan.selections
    assert selection is not None
    backend = find_backend(selection.backend)
    assert issubclass(backend, TritonBackend)
    return read_machine(backend.package, plan.device.arch)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("platform", "arch"), ARCHS, ids=[arch for _, arch in ARCHS])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_call_makes_more_than_the_plan_counts(platform: str, arch: str, name: str, data: st.DataObject) -> None:
    limits = hal.Limits(1 << 17, 256, data.draw(st.sampled_from([1, 64, 8192])))
    try:
        plan = make_plan(platform, arch, LAYERS[name], limits)
    except hal.NoBackend:
        assert platform == "cuda"
        return
    counted = sum(buffer.nbytes for buffer in plan.buffers if buffer.name.endswith(": parts"))
    tokens = data.draw(st.integers(1, limits.max_num_batched_tokens))
    requests = data.draw(st.integers(1, min(tokens, limits.max_num_seqs)))
    longest = data.draw(st.tuples(st.integers(1, tokens), st.integers(1, limits.max_model_len)))
    (request,) = plan.requests
    assert request is not None
    for kernel, widths in needed_tiles(request):
        if kernel == "sparse":
            assert 4 * count_sparse_parts(plan, widths, tokens) <= counted
        elif kernel != "scores":
            assert 4 * count_attend_parts(plan, kernel, widths, tokens, requests, longest) <= counted


def test_a_backend_that_lends_no_attending_call_counts_no_parts() -> None:
    plan = make_plan("cuda", "sm_90", dense_layer(), hal.Limits(4096, 8, 64))
    (request,) = plan.requests
    backend = find_backend("cuda:triton")
    assert request is not None
    assert backend.list_scratch(request, plan.limits, {"write_cache", "merge_states"}) == ()
    assert len(backend.list_scratch(request, plan.limits, {"paged_attention"})) == 1
