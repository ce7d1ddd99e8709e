"""Item 15: whatever an engine does, no launch compiles that the plan did not list; kernels are recorded and not run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import hal
from hal.common.backends.registry import platforms
from hal.common.triton import launch
from hal.config import IndexerShape, LayerShape, MLAShape, ModelShape

from .helpers.targets import BOUNDED

TRACES = settings(BOUNDED, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
PORTABLE = [f"{p.name}:{arch.name}" for p in platforms().values() if p.name in ("cuda", "rocm", "xpu") for arch in p.archs()]
LIMITS = hal.Limits(1024, 6, 96, block_size=16)
PAGES = 384
MLA = MLAShape(kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48)


def attention_layer(layer_id: int, heads: int = 8, kv_heads: int = 2, head_dim: int = 64, **changes: Any) -> LayerShape:
    widths = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": head_dim, "softmax_scale": 0.1}
    return LayerShape(layer_id=layer_id, kind="attention", **(widths | changes))


def mla_layer(layer_id: int, heads: int = 8, indexer: IndexerShape | None = None, value: int = 48, **changes: Any) -> LayerShape:
    widths = {"num_heads": heads, "num_kv_heads": heads, "head_dim": 48, "v_head_dim": value, "softmax_scale": 0.1}
    mla = replace(MLA, v_head_dim=value)
    return LayerShape(layer_id=layer_id, kind="mla", mla=mla, indexer=indexer, **(widths | changes))


def indexer(owns: bool = True, topk: int = 16) -> IndexerShape:
    return IndexerShape(topk=topk, num_heads=4, head_dim=32, owns=owns)


MODELS: dict[str, tuple[LayerShape, ...]] = {
    "gqa": (attention_layer(0), attention_layer(1, heads=6, kv_heads=6, head_dim=80)),
    "one_head": (attention_layer(0, heads=1, kv_heads=1, head_dim=16),),
    "narrow_heads": (attention_layer(0, heads=4, kv_heads=1, head_dim=40), attention_layer(1, head_dim=24, v_head_dim=40)),
    "one_odd_head": (attention_layer(0, kv_heads=1, head_dim=20), attention_layer(1, kv_heads=1, head_dim=12)),
    "masks": (
        attention_layer(0, window=24, sink=True),
        attention_layer(1, softcap=30.0, causal=False),
        attention_layer(2, chunk=32),
        attention_layer(3, window=24, kv_source=0, sink=True),
    ),
    "wide_values": (attention_layer(0, v_head_dim=128), attention_layer(1, heads=40, kv_heads=8, head_dim=128)),
    "mla": (mla_layer(0), mla_layer(1, sink=True), mla_layer(2, window=20)),
    "sparse": (mla_layer(0), mla_layer(1, indexer=indexer()), mla_layer(2, indexer=indexer(owns=False), sink=True)),
    "two_widths": (mla_layer(0, 16, indexer()), mla_layer(1, 16, indexer(topk=48))),
    "odd_widths": (mla_layer(0, value=40), mla_layer(1, indexer=indexer(topk=13)), mla_layer(2, indexer=indexer(False, 13))),
}


class InterpretedNothing:
    """A kernel whose launches do nothing; it takes tensors on the CPU, as interpreted ones do."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda **_arguments: None


@pytest.fixture(autouse=True)
def unrun_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are recorded with their keys, and never run."""
    monkeypatch.setattr(launch, "load_kernel", lambda _path: InterpretedNothing())


def make_model(layers: tuple[LayerShape, ...], dtype: str) -> ModelShape:
    return ModelShape(
        model_type="made_up",
        architectures=(),
        text_path="",
        hidden_size=64,
        vocab_size=100,
        num_layers=len(layers),
        max_position_embeddings=4096,
        dtype=dtype,
        tie_word_embeddings=False,
        layers=layers,
    )


class Recorder:
    """The keys of everything that an Attention launches, from its opening on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: dict[Hashable, None] = {}
        run = launch.Launcher.run

        def run_and_note(launcher: launch.Launcher, made: launch.Launch) -> None:
            if 0 not in made.grid:
                self.keys[launch.launch_key(made, launcher.arch)] = None
            run(launcher, made)

        monkeypatch.setattr(launch.Launcher, "run", run_and_note)


@st.composite
def traces(draw) -> list[tuple[list[tuple[int, int]], str]]:
    """Steps of (new tokens, earlier ones) per request, handed over in one of the ways in."""
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        longest = draw(st.sampled_from([1, 1, 4, 40]))
        lengths = draw(st.lists(st.tuples(st.integers(0, longest), st.integers(0, 900)), min_size=1, max_size=6))
        while sum(query for query, _ in lengths) > 90:
            lengths.pop()
        steps.append((lengths or [(1, 5)], draw(st.sampled_from(["host", "shuffled", "padded", "device", "capture"]))))
    return steps


def build(attention: hal.Attention, lengths: list[tuple[int, int]], way: str) -> hal.StepMetadata:
    """The metadata of one step of a trace."""
    queries, seqs = [query for query, _ in lengths], [query + past for query, past in lengths]
    table = np.arange(6 * 64, dtype=np.int32).reshape(6, 64)[: len(lengths)]
    if way == "capture":
        return attention.build_for_capture(len(lengths), max(len(lengths), sum(queries)))
    if way == "padded":
        return attention.build(hal.Batch(queries, seqs, table, num_tokens_padded=sum(queries) + 6, num_reqs_padded=6))
    if way == "device":
        order = sorted(range(len(queries)), key=lambda i: queries[i] > 1)
        queries, seqs = [queries[i] for i in order], [seqs[i] for i in order]
        return attention.build(
            hal.Batch.from_device(
                torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
                torch.tensor(seqs, dtype=torch.int32),
                torch.from_numpy(table),
                num_tokens=sum(queries),
                max_query_len=max(queries),
                max_seq_len=max(seqs),
                num_decodes=sum(query <= 1 for query in queries),
            )
        )
    if way == "host":
        lengths = sorted(lengths, key=lambda pair: pair[0] > 1)
        queries, seqs = [query for query, _ in lengths], [query + past for query, past in lengths]
    return attention.build(hal.Batch(queries, seqs, table))


def attend(attention: hal.Attention, metadata: hal.StepMetadata, dtype: torch.dtype, tp: int) -> None:
    """Every layer once, on zeros that are slices of a fused projection; sinks in the model's type or wider."""
    tokens = metadata.num_tokens_padded

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(tokens, 2 * prod(shape), dtype=dtype)[:, prod(shape) :].view(tokens, *shape)

    for layer in attention.plan.shape.layers:
        heads = layer.num_heads // tp
        sink = torch.zeros(heads, dtype=dtype if layer.layer_id else torch.float32) if layer.sink else None
        if layer.kind == "attention":
            kv_heads = max(1, layer.num_kv_heads // tp)
            k, v = (zeros(kv_heads, layer.head_dim), zeros(kv_heads, layer.v_head_dim)) if layer.owns_kv else (None, None)
            attention.attend(layer.layer_id, zeros(heads, layer.head_dim), k, v, metadata, sink=sink)
            continue
        index = None
        if layer.indexer is not None and layer.indexer.owns:
            index = hal.IndexInputs(zeros(4, 32), zeros(32), torch.zeros(tokens, 4))
        inputs = zeros(heads, 32), zeros(heads, 16), zeros(64), zeros(16)
        attention.attend_mla(layer.layer_id, *inputs, metadata, index=index, sink=sink)


def open_plan(layers: tuple[LayerShape, ...], target: str, dtype: str, tp: int, kv_layout: str = "auto") -> hal.Attention:
    device = hal.Device.from_arch(target, torch_device="cpu")
    platform = target.partition(":")[0]
    wishes = {"limits": LIMITS, "parallel": hal.Parallel(tp=tp), "backend": f"{platform}:triton", "kv_layout": kv_layout}
    plan = hal.plan(make_model(layers, dtype), device, **wishes)
    attention = plan.open(PAGES)
    for layer in layers:
        if layer.mla is not None:
            heads = layer.num_heads // tp
            w_uk, w_uv = torch.zeros(heads, 32, 64), torch.zeros(heads, layer.v_head_dim, 64)
            attention.bind_weights(layer.layer_id, w_uk.to(getattr(torch, dtype)), w_uv.to(getattr(torch, dtype)))
    attention.warm_up()
    return attention


def cells() -> Iterator[Any]:
    """Every arch with every kind of model, each pair with one type and number of ranks."""
    kinds = list(MODELS)
    for i, target in enumerate(PORTABLE):
        for j, kind in enumerate(kinds):
            if (i + j) % len(kinds) < 3:
                dtype = ("bfloat16", "float16", "float32")[(i + 2 * j) % 3]
                tp = 1 if kind == "one_head" else (1, 2)[(i + j) % 2]
                yield pytest.param(target, kind, dtype, tp, "auto", id=f"{target}-{kind}-{dtype}-tp{tp}")
    for target, kind, kv_layout in (
        ("cuda:sm_80", "sparse", "fp8_ds_mla"),
        ("cuda:sm_90", "mla", "fp8_ds_mla"),
        ("rocm:gfx942", "odd_widths", "latent_fp8"),
        ("rocm:gfx942", "gqa", "kv_fp8"),
        ("xpu:pvc", "narrow_heads", "kv_fp8"),
        ("xpu:pvc", "odd_widths", "fp8_ds_mla"),
    ):
        yield pytest.param(target, kind, "bfloat16", 1, kv_layout, id=f"{target}-{kind}-{kv_layout}")


@pytest.mark.parametrize(("arch", "kind", "dtype", "tp", "kv_layout"), list(cells()))
def test_recorded_is_a_subset_of_planned(
    arch: str, kind: str, dtype: str, tp: int, kv_layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAL_STRICT_WARMUP", "1")
    recorder = Recorder(monkeypatch)
    attention = open_plan(MODELS[kind], arch, dtype, tp, kv_layout)
    planned = set(attention.plan.warmup_keys())

    @TRACES
    @given(trace=traces())
    @example(trace=[([(1, 100), (20, 500)], "host"), ([(1, 5), (40, 0), (30, 0)], "host"), ([(33, 0)], "host")])
    def replay(trace: list[tuple[list[tuple[int, int]], str]]) -> None:
        for lengths, way in trace:
            attend(attention, build(attention, lengths, way), getattr(torch, dtype), tp)

    replay()
    assert recorder.keys
    assert recorder.keys.keys() <= planned
    assert attention.compile_misses == 0


def keys_of(target: str, *layers: LayerShape, **plan: Any) -> set[Hashable]:
    platform = target.partition(":")[0]
    shape = make_model(layers, "bfloat16")
    return set(hal.plan(shape, target, limits=LIMITS, backend=f"{platform}:triton", **plan).warmup_keys())


FEATURES = {
    "sink": (attention_layer(0), attention_layer(0, sink=True)),
    "window": (attention_layer(0), attention_layer(0, window=24)),
    "softcap": (attention_layer(0), attention_layer(0, softcap=30.0)),
    "indexer": (mla_layer(0), mla_layer(0, indexer=indexer())),
    "second_width": (mla_layer(0, indexer=indexer()), mla_layer(0, indexer=indexer(topk=48))),
}


@pytest.mark.parametrize("arch", ["cuda:sm_90", "rocm:gfx942", "xpu:pvc"])
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_of_a_model_adds_keys_of_its_own(feature: str, arch: str) -> None:
    """A list made for other settings than those that serve would lack them."""
    plain, with_feature = FEATURES[feature]
    assert keys_of(arch, with_feature) - keys_of(arch, plain)
    assert keys_of(arch, plain, replace(with_feature, layer_id=1, kv_source=1)) >= keys_of(arch, plain)


def test_keys_tell_archs_apart_and_installations_not() -> None:
    layers = (attention_layer(0), mla_layer(1, indexer=indexer()))
    keys = [keys_of(target, *layers) for target in ("cuda:sm_80", "cuda:sm_90")]
    assert not keys[0] & keys[1]
    assert str(Path(hal.__file__).parent) not in repr(keys)
