"""A plan in a quantised layout: what its caches are, how many bytes they take, and who takes part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hal
from hal.config import ModelShape, read_shape

BASE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
INDEX = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
COMPRESSED = BASE | {"head_dim": 512, "num_key_value_heads": 1, "compress_ratios": [0, 4, 128, 4], "sliding_window": 128}
COMPRESSED |= {"qk_rope_head_dim": 64, "index_topk": 512, "index_n_heads": 64, "index_head_dim": 128}
LIMITS = hal.Limits(4096, 4, 512)


def make_plan(shape: ModelShape, kv_layout: str, **changes: Any) -> hal.Plan:
    return hal.plan(shape, "cpu", limits=LIMITS, dtype="bfloat16", kv_layout=kv_layout, **changes)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("config", "kv_layout", "index_layout"),
    [
        (BASE, "kv", None),
        (BASE, "kv_fp8", None),
        (BASE | LATENT, "latent_fp8", None),
        (BASE | LATENT, "fp8_ds_mla", None),
        (BASE | LATENT | INDEX, "latent", "indexer"),
        (BASE | LATENT | INDEX, "latent_fp8", "indexer_fp8"),
        (BASE | LATENT | INDEX, "fp8_ds_mla", "indexer_fp8"),
    ],
)
def test_bytes_of_a_plan_are_those_of_the_shape(
    config: dict[str, Any], kv_layout: str, index_layout: str | None, tp: int
) -> None:
    shape = read_shape(config)
    plan = make_plan(shape, kv_layout, parallel=hal.Parallel(tp=tp))
    assert {selection.index_layout for selection in plan.selections if selection} == {index_layout}
    expected = shape.kv_bytes_per_token(kv_layout, "bfloat16", tp) + shape.index_bytes_per_token(kv_layout, "bfloat16")
    assert plan.bytes_per_token == expected
    assert plan.page_bytes == expected * plan.block_size
    assert plan.max_tokens(plan.workspace_bytes + 10 * plan.page_bytes) == 10 * plan.block_size
    assert {spec.layout.name for spec in plan.cache_specs()} == {kv_layout} | ({index_layout} if index_layout else set())
    assert kv_layout in plan.explain()


def test_deepseek_v32_takes_the_known_bytes() -> None:
    """61 layers of 656 and 132 bytes."""
    config = BASE | LATENT | INDEX | {"num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168}
    assert make_plan(read_shape(config), "fp8_ds_mla").bytes_per_token == 61 * (656 + 132)


def test_pages_of_a_compressed_model_are_padded() -> None:
    plan = make_plan(read_shape(COMPRESSED), "compressed")
    rows = {spec.rows_per_page: spec.page_bytes for spec in plan.cache_specs() if spec.layout.name == "compressed"}
    assert rows
    for count, nbytes in rows.items():
        assert nbytes % 576 == 0
        assert 0 <= nbytes - count * 584 < 576
    assert {spec.layout.name for spec in plan.cache_specs() if spec.part == "index"} == {"indexer_fp8"}


def mixed_shape() -> ModelShape:
    """Two MLA layers with an indexer and two layers of heads."""
    rows, heads = read_shape(BASE | LATENT | INDEX), read_shape(BASE)
    return replace(rows, layers=(*rows.layers[:2], *(replace(layer, kv_source=layer.layer_id) for layer in heads.layers[2:])))


@pytest.mark.parametrize(
    ("kv_layout", "names"),
    [
        ("auto", ["latent", "latent", "kv", "kv"]),
        ("kv_fp8", ["latent", "latent", "kv_fp8", "kv_fp8"]),
        ("fp8_ds_mla", ["fp8_ds_mla", "fp8_ds_mla", "kv", "kv"]),
    ],
)
def test_a_layout_goes_to_the_layers_that_can_have_it(kv_layout: str, names: list[str]) -> None:
    shape = mixed_shape()
    plan = make_plan(shape, kv_layout)
    assert [selection.kv_layout for selection in plan.selections if selection] == names
    expected = shape.kv_bytes_per_token(kv_layout, "bfloat16") + shape.index_bytes_per_token(kv_layout, "bfloat16")
    assert plan.bytes_per_token == expected


@pytest.mark.parametrize("kv_layout", ["compressed", "indexer_fp8", "fp8_ds_mla", "nonsense"])
def test_a_layout_that_no_layer_can_have_is_refused_with_the_reason(kv_layout: str) -> None:
    with pytest.raises(hal.NoBackend, match=f"KV layout {kv_layout} is not one of"):
        make_plan(read_shape(BASE), kv_layout)


@pytest.mark.parametrize(("fp8", "dtype"), [(None, "float8_e4m3fn"), ("e4m3fnuz", "float8_e4m3fnuz")])
def test_the_variant_is_the_devices(fp8: str | None, dtype: str) -> None:
    device = replace(hal.detect()[-1], fp8=fp8)
    plan = hal.plan(read_shape(BASE), device, limits=LIMITS, dtype="bfloat16", kv_layout="kv_fp8")
    assert {spec.layout.dtype for spec in plan.cache_specs()} == {dtype}


def test_a_plan_says_which_scales_an_engine_must_bring() -> None:
    specs = make_plan(read_shape(BASE), "kv_fp8").cache_specs()
    assert {spec.scale_shapes for spec in specs} == {((2,), (2, 2))}
    specs = make_plan(read_shape(BASE | LATENT | INDEX), "latent_fp8").cache_specs()
    assert {spec.part: spec.scale_shapes for spec in specs} == {"kv": ((1,),), "index": ()}


def test_the_context_is_gathered_wider_than_it_is_kept() -> None:
    shape = read_shape(BASE | LATENT)
    plain, quantised = (
        next(buffer for buffer in make_plan(shape, name).buffers if buffer.name == "context") for name in ("latent", "fp8_ds_mla")
    )
    assert (plain.dtype, quantised.dtype) == ("bfloat16", "float32")


@pytest.mark.parametrize("target", ["cuda:sm_90", "rocm:gfx942", "xpu:pvc"])
def test_backends_without_a_layout_say_so(target: str) -> None:
    request = hal.Request(read_shape(BASE).layer(0), hal.Device.from_arch(target), "bfloat16", "kv_fp8")
    for name, reasons in hal.supports_combination(request).items():
        if name.startswith(target.partition(":")[0]) and "not_built" not in [reason.code for reason in reasons]:
            declared = hal.common.backends.registry.backends()[name].capabilities.kv_layouts["attention"]
            assert ("kv_layout" in [reason.code for reason in reasons]) == ("kv_fp8" not in declared)
