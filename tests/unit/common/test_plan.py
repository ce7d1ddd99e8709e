"""A plan's groups, caches and sizes, for models made of known layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.contract.software import Library
from hal.common.planning.defaults import default_limits
from hal.config import LayerShape

from .helpers.fakes import ask, capabilities, codes, gqa_layer, make_backend, mla_layer, model, sparse_layer

LIMITS = hal.Limits(1024, 4, 64, block_size=16)
MIXED = model(
    gqa_layer(0),
    gqa_layer(1, window=128),
    LayerShape(layer_id=2, kind="none"),
    gqa_layer(3),
    gqa_layer(4, window=128, kv_source=1),
    gqa_layer(5, num_kv_heads=4, num_heads=8),
)
SPARSE = model(sparse_layer(0, topk=64), sparse_layer(1, topk=64, owns=False), sparse_layer(2, topk=64))


def planned(shape: hal.config.ModelShape, **changes) -> hal.Plan:
    return hal.plan(shape, "cpu", **({"limits": LIMITS, "dtype": "bfloat16"} | changes))


def test_layers_of_one_size_and_lifetime_share_a_group() -> None:
    groups = planned(MIXED).groups
    assert [(group.part, group.layer_ids, group.window) for group in groups] == [
        ("kv", (0, 3), None),
        ("kv", (1,), 128),
        ("kv", (5,), None),
    ]
    assert [group.group_id for group in groups] == [0, 1, 2]
    assert [group.bytes_per_token for group in groups] == [2 * 512, 512, 1024]


def test_index_keys_have_a_group_of_their_own_after_the_kv() -> None:
    groups = planned(SPARSE).groups
    assert [(group.part, group.layer_ids, group.layout.name) for group in groups] == [
        ("kv", (0, 1, 2), "latent"),
        ("index", (0, 2), "indexer"),
    ]


def test_layers_without_attention_have_no_selection() -> None:
    selections = planned(MIXED).selections
    assert [selection is None for selection in selections] == [False, False, True, False, False, False]


def test_specs_are_one_per_tensor_by_layer() -> None:
    specs = planned(SPARSE).cache_specs()
    assert [spec.key for spec in specs] == [0, (0, "index"), 1, 2, (2, "index")]
    assert [spec.shape(7) for spec in specs[:2]] == [(7, 16, 576), (7, 16, 128)]
    assert [spec.page_bytes for spec in specs[:2]] == [16 * 1152, 16 * 256]
    assert [spec.group for spec in specs] == [0, 1, 0, 0, 1]


def test_a_layer_that_reads_anothers_kv_has_no_cache() -> None:
    assert [spec.key for spec in planned(MIXED).cache_specs()] == [0, 1, 3, 5]


@pytest.mark.parametrize(("shape", "tp"), [(MIXED, 1), (MIXED, 2), (MIXED, 4), (SPARSE, 1), (SPARSE, 8)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bytes_per_token_are_the_shapes(shape: hal.config.ModelShape, tp: int, dtype: str) -> None:
    plan = planned(shape, dtype=dtype, parallel=hal.Parallel(tp=tp))
    assert plan.bytes_per_token == shape.kv_bytes_per_token("auto", dtype, tp) + shape.index_bytes_per_token("auto", dtype)
    assert plan.page_bytes == plan.bytes_per_token * plan.block_size
    assert plan.page_bytes == sum(spec.page_bytes for spec in plan.cache_specs())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(memory=st.integers(0, 2**31))
def test_capacity_is_whole_pages_that_fit_and_no_more_would(memory: int) -> None:
    plan = planned(SPARSE)
    tokens = plan.max_tokens(memory)
    assert tokens % plan.block_size == 0
    taken = plan.workspace_bytes + tokens * plan.bytes_per_token
    assert tokens == 0 or taken <= memory
    assert taken + plan.page_bytes > memory


def test_pages_for_every_request_at_full_length() -> None:
    plan = planned(MIXED, limits=hal.Limits(1000, 3, 64, block_size=16))
    assert plan.default_num_blocks() == 3 * 63
    assert plan.block_table_width == 64


def test_a_model_without_attention_needs_no_cache() -> None:
    plan = planned(model(LayerShape(layer_id=0, kind="none")))
    assert (plan.groups, plan.cache_specs(), plan.bytes_per_token, plan.max_tokens(10**9)) == ((), (), 0, 0)


class TestDefaults:
    def test_the_type_is_the_models(self) -> None:
        assert hal.plan(model(gqa_layer(), dtype="float16"), "cpu").dtype == "float16"
        assert hal.plan(model(gqa_layer(), dtype=None), "cpu").dtype == "bfloat16"

    def test_the_device_is_this_machines(self) -> None:
        assert hal.plan(MIXED).device == hal.detect()[0]

    def test_the_page_size_is_the_backends(self) -> None:
        plan = hal.plan(MIXED, "cpu", limits=hal.Limits(1024, 4, 64))
        assert plan.block_size == plan.selections[0].block_size
        assert {spec.block_size for spec in plan.cache_specs()} == {plan.block_size}

    def test_nothing_compiles_on_the_cpu(self) -> None:
        assert planned(MIXED).warmup_keys() == ()


@pytest.mark.usefixtures("no_backends")
class TestElsewhere:
    def test_an_absent_device_assumes_every_library(self) -> None:
        hal.register_backend(make_backend("cuda:a", libraries=(Library(name="a", distributions=("no-such-wheel",)),)))
        assert hal.plan(model(gqa_layer()), "cuda:sm_90", limits=LIMITS).selections[0].backend == "cuda:a"

    def test_a_present_device_has_what_is_installed(self) -> None:
        hal.register_backend(make_backend("cuda:a", libraries=(Library(name="a", distributions=("no-such-wheel",)),)))
        present = hal.Device(platform="cuda", arch="sm_90", present=True)
        with pytest.raises(hal.NoBackend) as error:
            hal.plan(model(gqa_layer()), present, limits=LIMITS)
        assert codes(error.value.rejected["cuda:a"]) == ["library_absent"]
        assert hal.installed() == hal.Software()

    def test_the_software_that_is_given_counts(self) -> None:
        hal.register_backend(make_backend("cuda:a", libraries=(Library(name="a", distributions=()),)))
        with pytest.raises(hal.NoBackend):
            hal.plan(model(gqa_layer()), "cuda:sm_90", limits=LIMITS, software=hal.Software())

    def test_a_layer_that_nobody_serves_is_an_error_with_its_number(self) -> None:
        hal.register_backend(make_backend("cuda:a"))
        with pytest.raises(hal.NoBackend, match="layer 1"):
            hal.plan(model(gqa_layer(0), gqa_layer(1, window=8)), "cuda:sm_90", limits=LIMITS)

    def test_an_explicit_backend_holds_for_every_layer(self) -> None:
        hal.register_backend(make_backend("cuda:a", rank={"*": 1}))
        hal.register_backend(make_backend("cuda:b", rank={"*": 2}))
        plan = hal.plan(model(gqa_layer(0), gqa_layer(1)), "cuda:sm_90", limits=LIMITS, backend="cuda:b")
        assert [(each.backend, each.source) for each in plan.selections] == [("cuda:b", "argument")] * 2

    @pytest.mark.parametrize("flipped", [False, True], ids=["16_first", "64_first"])
    def test_layers_with_different_page_sizes_agree_on_one_that_fits_both(self, flipped: bool) -> None:
        """16 and 64 have 64 in common, whichever layer comes first."""
        hal.register_backend(make_backend("cuda:a", families=frozenset({"attention"}), block_size_multiple=16))
        hal.register_backend(make_backend("cuda:b", families=frozenset({"mla"}), block_size_multiple=64, default_block_size=64))
        layers = (mla_layer(0), gqa_layer(1)) if flipped else (gqa_layer(0), mla_layer(1))
        plan = hal.plan(model(*layers), "cuda:sm_90", limits=hal.Limits(1024, 4, 64))
        assert plan.block_size % 64 == 0

    def test_a_request_for_each_layer_carries_the_plans_wishes(self) -> None:
        hal.register_backend(make_backend("cuda:a"))
        for wish in ({"graphs": "always"}, {"num_spec_tokens": 2}, {"need_lse": True}, {"kv_layout": "kv_fp8"}):
            with pytest.raises(hal.NoBackend):
                hal.plan(model(gqa_layer()), "cuda:sm_90", limits=LIMITS, **wish)
        assert capabilities().graphs == "never"
        assert hal.select(ask()).backend == "cuda:a"


def test_a_misspelt_variable_is_warned_about_once_for_all_layers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HAL_BACKNED", "cpu")
    planned(MIXED)
    assert [record.message.count("HAL_BACKEND?") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shape", {"hidden_size": 64}),
        ("shape", None),
        ("device", ["cuda:sm_90"]),
        ("limits", {"max_model_len": 64}),
        ("limits", []),
        ("parallel", 2),
        ("software", "vllm"),
        ("kv_layout", ["kv"]),
        ("backend", 3),
    ],
    ids=str,
)
def test_an_argument_of_another_kind_is_refused_by_name(name: str, value: object) -> None:
    arguments = {"shape": MIXED, "device": "cpu", "limits": LIMITS} | {name: value}
    with pytest.raises(hal.InputError, match=f"^{name} is .*expected"):
        hal.plan(**arguments)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "64"])
def test_pools_for_no_number_of_tokens(tokens: object) -> None:
    with pytest.raises(hal.InputError, match=f"num_tokens is {tokens!r}"):
        planned(MIXED).blocks_per_group(tokens)


@pytest.mark.parametrize(("purpose", "limits"), [("run", (8192, 8, 2048)), ("fleet", (131072, 64, 8192))])
def test_what_nobody_says_is_a_purpose_s(purpose: str, limits: tuple[int, int, int]) -> None:
    shape = replace(MIXED, max_position_embeddings=131072)
    found = default_limits(shape, purpose)
    assert (found.max_model_len, found.max_num_seqs, found.max_num_batched_tokens) == limits
    given = default_limits(shape, purpose, max_model_len=7, max_num_seqs=2, max_num_batched_tokens=3, block_size=16)
    assert given == hal.Limits(7, 2, 3, 16)
    assert hal.plan(shape, "cpu", dtype="float32").limits == default_limits(shape, "run")
