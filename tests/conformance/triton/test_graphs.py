"""`graphs` is uniform_batch: what was captured once serves every step of its size, replayed with nothing of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import hal
from hal.common.triton.launch import Launch, Launcher, launch_key

from .helpers.small_layers import LAYERS, LIMITS, PAGES, SPEC, make_inputs, open_layer

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

REQUESTS = 3
CASES = [
    *(pytest.param("cuda:sm_90", name, "auto", 1 + SPEC, id=f"cuda-{name}") for name in LAYERS),
    pytest.param("cuda:sm_90", "sparse", "fp8_ds_mla", 1, id="cuda-sparse-fp8"),
    pytest.param("rocm:gfx942", "sparse", "latent_fp8", 1, id="rocm-sparse-fp8"),
    pytest.param("xpu:pvc", "window_and_sink", "kv_fp8", 1, id="xpu-window_and_sink-fp8"),
]


def attend(attention: hal.Attention, inputs: dict[str, Any], metadata: hal.StepMetadata) -> torch.Tensor:
    call = attention.attend if "q" in inputs else attention.attend_mla
    return call(0, metadata=metadata, **inputs)


def flatten(inputs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in inputs.values():
        yield from value if isinstance(value, tuple) else (value,)


def random_steps(count: int, query_len: int, seed: int) -> Iterator[tuple[list[int], list[int], Any]]:
    """Decodes of up to as many requests as were captured, anywhere in the model's length, on pages of their own."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        requests = int(draw.integers(1, REQUESTS + 1))
        queries = draw.integers(1, query_len + 1, requests)
        lengths = draw.integers(queries, LIMITS.max_model_len + 1)
        table = draw.permutation(PAGES)[: requests * 3].reshape(requests, 3).astype(np.int32)
        yield queries.tolist(), lengths.tolist(), table


def padded(step: tuple[list[int], list[int], Any], query_len: int) -> hal.Batch:
    return hal.Batch(*step, num_reqs_padded=REQUESTS, num_tokens_padded=REQUESTS * query_len)


@pytest.mark.parametrize(("target", "name", "kv_layout", "query_len"), CASES)
def test_a_captured_step_replays_as_any_step_of_its_size(
    target: str, name: str, kv_layout: str, query_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .helpers.graphs import Graph

    layer, tokens, generator = LAYERS[name], REQUESTS * query_len, torch.Generator().manual_seed(1)
    device = hal.Device.from_arch(target, torch_device="cpu")
    captured = open_layer(layer, device, kv_layout, "uniform_batch")
    # The CPU's bytes are e4m3fn's: what holds others is compared with steps that are no replays.
    reference = open_layer(layer, device if device.fp8 == "e4m3fnuz" else "cpu", kv_layout, "never")
    for key, mine in captured.caches.items():
        theirs = reference.caches[key]
        theirs.storage.view(torch.uint8).copy_(_filled(mine.storage, generator).view(torch.uint8))
        mine.storage.view(torch.uint8).copy_(theirs.storage.view(torch.uint8))
    captured.warm_up()
    graph = Graph(monkeypatch)
    static = make_inputs(layer, tokens, generator)
    metadata = captured.build_for_capture(REQUESTS, tokens)
    with graph:
        out = attend(captured, static, metadata)
    assert captured.compile_misses == 0
    launcher = Launcher(device.arch)
    for step in random_steps(3, query_len, seed=len(name)):
        fresh = make_inputs(layer, tokens, generator)
        for old, new in zip(flatten(static), flatten(fresh), strict=True):
            old.copy_(new)
        captured.build(padded(step, query_len))
        graph.replay(launcher)
        wanted = attend(reference, fresh, reference.build(padded(step, query_len)))
        torch.testing.assert_close(out, wanted, atol=2e-4, rtol=2e-4)


def _filled(storage: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if storage.dtype.itemsize == 1:
        # Small values and scales of any encoding: no NaN, and no byte above those of 2.
        codes = torch.randint(0, 48, storage.shape, generator=generator, dtype=torch.uint8)
        return torch.zeros_like(storage) if storage.dtype is torch.uint8 else codes.view(storage.dtype)
    return torch.randn(storage.shape, generator=generator, dtype=storage.dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_launches_of_200_steps_are_those_of_the_capture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, constants, numbers and grids are the capture's, and so is every address that outlives the call."""
    layer, query_len, made = LAYERS[name], 1 + SPEC, []
    monkeypatch.setattr(Launcher, "run", lambda _, launch: made.append(launch))
    attention = open_layer(layer, hal.Device.from_arch("cuda:sm_90", torch_device="cpu"), "auto", "uniform_batch")
    static = make_inputs(layer, REQUESTS * query_len, torch.Generator().manual_seed(1))

    def launch_captured() -> list[Launch]:
        made.clear()
        attend(attention, static, attention.build_for_capture(REQUESTS, REQUESTS * query_len))
        return list(made)

    first, kept = launch_captured(), persistent(attention, static)
    assert first
    for step in random_steps(200, query_len, seed=7):
        attention.build(padded(step, query_len))
        again = launch_captured()
        assert [describe(each, kept) for each in again] == [describe(each, kept) for each in first]


def persistent(attention: hal.Attention, static: dict[str, Any]) -> set[int]:
    """Where the memory of caches, of step arrays and of a graph's inputs begins."""
    staging = attention._builder._parts.staging
    tensors = [*staging.device.values(), *(cache.storage for cache in attention.caches.values()), *flatten(static)]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def describe(launch: Launch, kept: set[int]) -> tuple[Any, ...]:
    tensors = {**launch.tensors, **launch.tables}
    places = {
        name: tensor.data_ptr() if tensor.untyped_storage().data_ptr() in kept else tuple(tensor.shape)
        for name, tensor in tensors.items()
    }
    return launch_key(launch, "sm_90"), launch.grid, tuple(launch.numbers.items()), tuple(launch.strides.items()), places


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_the_cpu_run_twice_gives_the_same_bits_at_the_same_addresses(name: str) -> None:
    """It has no graphs; that nothing lasts from a run to the next but the cache is what they would need."""
    layer, query_len, generator = LAYERS[name], 1 + SPEC, torch.Generator().manual_seed(1)
    attention = open_layer(layer, "cpu", "auto", "never")
    for step in random_steps(200, query_len, seed=11):
        inputs = make_inputs(layer, REQUESTS * query_len, generator)
        runs = []
        for _ in range(2):
            metadata = attention.build(padded(step, query_len))
            places = [tensor.data_ptr() for tensor in (metadata.seq_lens, metadata.slot_mapping, metadata.block_table)]
            runs.append((places, attend(attention, inputs, metadata)))
        assert runs[0][0] == runs[1][0]
        assert torch.equal(runs[0][1], runs[1][1])
