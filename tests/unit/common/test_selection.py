"""Who is chosen, call by call, and what is said of the others."""

from __future__ import annotations

import logging

import pytest

import hal
from hal.common.contract.software import Library

from .helpers.fakes import ask, codes, gqa_layer, make_backend, mla_layer, register, sparse_layer

pytestmark = pytest.mark.usefixtures("no_backends")


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
    register(make_backend("cuda:a", dcp=True, key_ranges=True, default_block_size=16))
    selection = hal.select(ask(parallel=hal.Parallel(dcp=2, interleave=24)))
    assert selection.block_size % 24 == 0


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


def test_without_any_backend_nothing_is_selected() -> None:
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
