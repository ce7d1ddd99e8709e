"""Kinds of failures around pages: parts forgotten in a size, pages that do not go together, families of archs too wide."""

from __future__ import annotations

import pytest

import hal
from hal.common.backends.registry import platforms
from hal.common.contract.layouts import layer_index_layout, layer_layout
from hal.config import read_shape

from .helpers.fakes import ask, codes, gqa_layer, make_backend, mla_layer, model, register, sparse_layer

V3_2 = {
    "model_type": "made_up",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
ARCHS = [(platform.name, arch) for platform in platforms().values() for arch in platform.archs()]
LIMITS = {"max_model_len": 512, "max_num_seqs": 1, "max_num_batched_tokens": 64}


@pytest.mark.parametrize(
    ("kv_layout", "latent", "index"), [("auto", 1152, 256), ("latent_fp8", 576, 132), ("fp8_ds_mla", 656, 132)]
)
def test_a_page_counts_every_part_of_every_layer(kv_layout: str, latent: int, index: int) -> None:
    limits = hal.Limits(**LIMITS, block_size=256)
    plan = hal.plan(read_shape(V3_2), "cpu", limits=limits, dtype="bfloat16", kv_layout=kv_layout)
    assert plan.page_bytes == 61 * 256 * (latent + index)
    assert sum(spec.page_bytes for spec in plan.cache_specs()) == plan.page_bytes
    assert {spec.part for spec in plan.cache_specs()} == {"kv", "index"}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
def test_every_cache_of_a_model_has_the_encoding_of_the_device_it_runs_on(arch: str) -> None:
    device = hal.Device.from_arch(arch)
    found = {
        layer_layout(gqa_layer(), "kv_fp8", "bfloat16", fp8=device.fp8).fp8,
        layer_layout(mla_layer(), "latent_fp8", "bfloat16", fp8=device.fp8).fp8,
        layer_layout(mla_layer(), "fp8_ds_mla", "bfloat16", fp8=device.fp8).fp8,
        layer_index_layout(sparse_layer(), "bfloat16", "indexer_fp8", fp8=device.fp8).fp8,
    }
    assert found == {device.fp8} == {"e4m3fnuz" if arch == "gfx942" else "e4m3fn"}


@pytest.fixture
def exact_pages(no_backends: object) -> None:
    """Two backends that each take one page size and no other, for different kinds of layers."""

    def only(size: int):
        def refuse(cls: type, request: hal.Request) -> tuple[hal.Reason, ...]:
            if request.block_size in (None, size):
                return ()
            return (hal.Reason("block_size", request.block_size, f"pages of {size}"),)

        return classmethod(refuse)

    families = {"attention": frozenset({"attention"}), "mla": frozenset({"mla"})}
    register(
        make_backend("cuda:a", families=families["attention"], default_block_size=64, explain_refusal=only(64)),
        make_backend("cuda:b", families=families["mla"], default_block_size=256, explain_refusal=only(256)),
    )


@pytest.mark.usefixtures("exact_pages")
def test_layers_whose_pages_do_not_go_together_are_an_error_with_both_sizes() -> None:
    limits = hal.Limits(**LIMITS)
    with pytest.raises(hal.NoBackend, match=r"layer 0(?s:.*)block size 256 does not fit pages of 64"):
        hal.plan(model(gqa_layer(0), mla_layer(1)), "cuda:sm_90", limits=limits, dtype="bfloat16")
    assert hal.plan(model(gqa_layer(0)), "cuda:sm_90", limits=limits, dtype="bfloat16").block_size == 64


@pytest.mark.usefixtures("no_backends")
@pytest.mark.parametrize(("platform", "arch"), ARCHS, ids=[f"{platform}:{arch.name}" for platform, arch in ARCHS])
def test_a_listed_arch_is_served_and_its_relatives_are_not(platform: str, arch) -> None:
    """Never by family or by order: the neighbour of a listed arch is another arch."""
    listed = frozenset({"sm_90", "sm_103", "gfx942", "pvc", "cpu"})
    register(make_backend("x:listed", platform=platform, archs=listed))
    reasons = hal.supports_combination(ask(target=f"{platform}:{arch.name}"))["x:listed"]
    assert codes(reasons) == ([] if arch.name in listed else ["arch"])


@pytest.mark.usefixtures("no_backends")
def test_a_layout_that_a_backend_cannot_read_is_never_switched() -> None:
    layouts = {"attention": ("kv", "kv_fp8")}
    register(
        make_backend("cuda:plain", rank={"*": 1}),
        make_backend("cuda:both", rank={"*": 2}, families=frozenset({"attention"}), kv_layouts=layouts),
    )
    request = ask(kv_layout="kv_fp8")
    chosen = hal.select(request)
    assert (chosen.backend, chosen.kv_layout) == ("cuda:both", "kv_fp8")
    assert codes(chosen.rejected["cuda:plain"]) == ["kv_layout"]
    with pytest.raises(hal.NoBackend, match=r"cuda:plain \(chosen by argument\).*kv_fp8.*cuda:both"):
        hal.select(request, backend="cuda:plain")


@pytest.mark.usefixtures("no_backends")
def test_a_dense_backend_forced_on_a_sparse_layer_says_so_and_who_could() -> None:
    dense = make_backend("cuda:dense", families=frozenset({"mla"}))
    register(dense, make_backend("cuda:sparse"))
    with pytest.raises(hal.NoBackend, match=r"cuda:dense .*it serves mla, not sparse_mla.*these do: cuda:sparse"):
        hal.select(ask(sparse_layer()), backend="cuda:dense")


@pytest.mark.usefixtures("fleet")
def test_a_choice_holds_for_the_plan_it_was_made_for_and_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model has a plan of its own: an argument does not reach it, the variable does."""
    options = {"limits": hal.Limits(**LIMITS), "dtype": "bfloat16"}
    target, draft = model(gqa_layer(0), gqa_layer(1)), model(gqa_layer(0))
    chosen = hal.plan(target, "cuda:sm_90", backend="cuda:triton", **options)
    assert {(each.backend, each.source) for each in chosen.selections} == {("cuda:triton", "argument")}
    assert [(each.backend, each.source) for each in hal.plan(draft, "cuda:sm_90", **options).selections] == [
        ("cuda:fast", "auto")
    ]
    monkeypatch.setenv("HAL_BACKEND", "cuda:other")
    for shape in (target, draft):
        found = {(each.backend, each.source) for each in hal.plan(shape, "cuda:sm_90", **options).selections}
        assert found == {("cuda:other", "HAL_BACKEND")}
