"""Who is chosen, call by call, and what is said of the others."""

from __future__ import annotations

import logging

import pytest

import hal
from hal.common.software import Library

from .fakes import ask, codes, gqa_layer, make_backend, mla_layer, sparse_layer

pytestmark = pytest.mark.usefixtures("no_backends")


def register(*classes: type[hal.Backend]) -> None:
    for cls in classes:
        hal.register_backend(cls)


@pytest.fixture
def fleet(no_backends: object) -> None:
    """A portable backend for everything and two vendors' on top of it."""
    portable = make_backend("cuda:triton", rank={"*": 90}, sink=True, window=True, default_block_size=32)
    fast = make_backend(
        "cuda:fast",
        base=portable,
        rank={"sm_90": 1, "*": 5},
        provides=frozenset({"paged_attention"}),
        libraries=(Library(name="fast", distributions=("fast",)),),
        head_dims=frozenset({64}),
        default_block_size=64,
    )
    other = make_backend("cuda:other", base=portable, rank={"sm_90": 2, "sm_100": 0}, provides=frozenset({"paged_attention"}))
    register(portable, fast, other)


@pytest.mark.usefixtures("fleet")
class TestAutomatic:
    @pytest.mark.parametrize(("arch", "name"), [("sm_90", "cuda:fast"), ("sm_100", "cuda:other"), ("sm_80", "cuda:fast")])
    def test_the_lowest_rank_of_the_arch_is_chosen(self, arch: str, name: str) -> None:
        selection = hal.select(ask(target=f"cuda:{arch}"))
        assert (selection.backend, selection.source) == (name, "auto")

    def test_the_next_in_rank_serves_what_the_first_cannot(self) -> None:
        selection = hal.select(ask(gqa_layer(head_dim=128)))
        assert selection.backend == "cuda:other"
        assert codes(selection.rejected["cuda:fast"]) == ["head_dim"]

    def test_the_portable_one_is_left_where_no_library_is(self) -> None:
        selection = hal.select(ask(gqa_layer(head_dim=128, sink=True), software=hal.Software({})))
        assert selection.backend == "cuda:triton"
        assert codes(selection.rejected["cuda:fast"]) == ["library_absent", "head_dim", "sink"]

    def test_calls_the_vendor_does_not_provide_come_from_below(self) -> None:
        providers = hal.select(ask()).providers
        assert providers["paged_attention.decode"] == providers["paged_attention.prefill"] == "cuda:fast"
        assert {providers["write_cache"], providers["gather_cache"], providers["merge_states"]} == {"cuda:triton"}

    def test_supported_but_lower_backends_are_not_rejected(self) -> None:
        assert hal.select(ask()).rejected == {}

    def test_page_size_and_layout_are_the_chosen_ones(self) -> None:
        assert hal.select(ask()).block_size == 64
        assert hal.select(ask(block_size=128)).block_size == 128
        assert hal.select(ask()).kv_layout == "kv"
        assert hal.select(ask()).index_layout is None

    @pytest.mark.parametrize(("owns", "layout"), [(True, "indexer"), (False, None)], ids=["owner", "shared"])
    def test_index_layout_belongs_to_owners(self, owns: bool, layout: str | None) -> None:
        assert hal.select(ask(sparse_layer(owns=owns))).index_layout == layout

    @pytest.mark.parametrize(
        ("layer", "calls"),
        [
            (gqa_layer(), {"paged_attention.decode", "paged_attention.prefill"}),
            (gqa_layer(sink=True), {"paged_attention.decode", "apply_sink"}),
            (mla_layer(head_dim=64), {"paged_attention.decode", "varlen_attention.prefill"}),
            (
                sparse_layer(head_dim=64),
                {"index_scores", "select_topk", "rows_from_topk", "sparse_mla.decode", "sparse_mla.prefill"},
            ),
        ],
        ids=["gqa", "sink", "mla", "sparse"],
    )
    def test_every_call_of_the_family_has_a_provider(self, layer, calls: set[str]) -> None:
        providers = hal.select(ask(layer)).providers
        assert calls | {"write_cache", "gather_cache", "merge_states"} <= set(providers)
        assert set(providers.values()) <= {"cuda:triton", "cuda:fast", "cuda:other"}


def test_a_call_refused_in_one_phase_goes_to_the_next_backend() -> None:
    def refuse(cls: type, call: str, phase: str, request: hal.Request) -> tuple[hal.Reason, ...]:
        return (hal.Reason("heads", 8, 64),) if (call, phase) == ("paged_attention", "prefill") else ()

    portable = make_backend("cuda:triton", rank={"*": 90})
    fast = make_backend("cuda:fast", rank={"*": 1}, explain_call_refusal=classmethod(refuse))
    register(portable, fast)
    providers = hal.select(ask()).providers
    assert providers["paged_attention.decode"] == "cuda:fast"
    assert providers["paged_attention.prefill"] == "cuda:triton"


def test_equal_ranks_are_settled_by_name() -> None:
    register(make_backend("cuda:b", rank={"*": 1}), make_backend("cuda:a", rank={"*": 1}))
    assert hal.select(ask()).backend == "cuda:a"


def test_registration_order_decides_nothing() -> None:
    register(make_backend("cuda:z"), make_backend("cuda:y", rank={"sm_90": 3}))
    assert hal.select(ask()).backend == "cuda:y"


def test_a_page_size_of_hals_own_fits_the_interleave() -> None:
    register(make_backend("cuda:a", dcp=True, default_block_size=16))
    selection = hal.select(ask(parallel=hal.Parallel(dcp=2, interleave=24)))
    assert selection.block_size % 24 == 0


@pytest.mark.usefixtures("fleet")
class TestExplicit:
    def test_an_argument_is_binding(self) -> None:
        selection = hal.select(ask(), backend="cuda:triton")
        assert (selection.backend, selection.source) == ("cuda:triton", "argument")
        assert set(selection.providers.values()) == {"cuda:triton"}

    def test_the_environment_is_binding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HAL_BACKEND", "cuda:other")
        selection = hal.select(ask())
        assert (selection.backend, selection.source) == ("cuda:other", "HAL_BACKEND")

    def test_an_argument_beats_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HAL_BACKEND", "cuda:other")
        assert hal.select(ask(), backend="cuda:triton").backend == "cuda:triton"

    def test_an_empty_variable_is_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HAL_BACKEND", "")
        assert hal.select(ask()).source == "auto"

    def test_a_choice_that_cannot_serve_raises_with_reasons_and_alternatives(self) -> None:
        with pytest.raises(hal.NoBackend) as error:
            hal.select(ask(gqa_layer(head_dim=128)), backend="cuda:fast")
        text = str(error.value)
        assert all(word in text for word in ["cuda:fast", "argument", "head_dim 128", "cuda:triton", "cuda:other"])
        assert codes(error.value.rejected["cuda:fast"]) == ["head_dim"]

    def test_a_pinned_variable_that_cannot_serve_is_blamed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HAL_BACKEND", "cuda:fast")
        with pytest.raises(hal.NoBackend, match="HAL_BACKEND"):
            hal.select(ask(gqa_layer(head_dim=128)))

    @pytest.mark.parametrize("way", ["argument", "HAL_BACKEND"])
    def test_an_unknown_name_is_an_error_that_lists_the_names(self, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if way == "HAL_BACKEND":
            monkeypatch.setenv("HAL_BACKEND", "cuda:fats")
        with pytest.raises(ValueError, match=r"'cuda:fats'.*cuda:fast, cuda:other, cuda:triton"):
            hal.select(ask(), backend="cuda:fats" if way == "argument" else None)


def test_an_unknown_name_in_the_environment_blames_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    register(make_backend("cuda:a"))
    monkeypatch.setenv("HAL_BACKEND", "cuda:nothing")
    with pytest.raises(ValueError, match="HAL_BACKEND"):
        hal.select(ask())


def test_no_backend_has_every_reason_of_every_backend() -> None:
    register(
        make_backend("cuda:a", libraries=(Library(name="a", distributions=()),)),
        make_backend("cuda:b", archs=frozenset({"sm_80"})),
        make_backend("rocm:c", platform="rocm"),
    )
    with pytest.raises(hal.NoBackend) as error:
        hal.select(ask(gqa_layer(window=7), software=hal.Software({})))
    assert {name: codes(reasons) for name, reasons in error.value.rejected.items()} == {
        "cuda:a": ["library_absent", "window"],
        "cuda:b": ["arch", "window"],
        "rocm:c": ["platform"],
    }
    text = str(error.value)
    assert all(word in text for word in ["cuda:a", "cuda:b", "a, which is not installed", "sm_80", "window of 7", "cuda:sm_90"])
    assert isinstance(error.value, hal.HalError)
    assert isinstance(error.value, LookupError)


def test_a_cause_that_several_share_is_said_once() -> None:
    library = (Library(name="shared", distributions=()),)
    register(make_backend("cuda:a", libraries=library), make_backend("cuda:b", libraries=library))
    with pytest.raises(hal.NoBackend) as error:
        hal.select(ask(software=hal.Software({})))
    assert str(error.value).count("shared, which is not installed") == 1


def test_with_no_backend_at_all() -> None:
    with pytest.raises(hal.NoBackend, match="no backend"):
        hal.select(ask())


def test_supports_combination_answers_for_everyone() -> None:
    register(make_backend("cuda:a"), make_backend("rocm:c", platform="rocm"))
    answers = hal.supports_combination(ask())
    assert {name: codes(reasons) for name, reasons in answers.items()} == {"cuda:a": [], "rocm:c": ["platform"]}


def test_a_misspelt_variable_is_warned_about(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    register(make_backend("cuda:a"))
    monkeypatch.setenv("HAL_BAKEND", "cuda:a")
    with caplog.at_level(logging.WARNING, logger="hal"):
        hal.select(ask())
    assert "HAL_BAKEND" in caplog.text
    assert "HAL_BACKEND" in caplog.text
