"""A backend that is asked for by name: binding, or an error that says who asked and who could."""

from __future__ import annotations

import pytest

import hal

from .helpers.fakes import ask, codes, gqa_layer, make_backend, register

pytestmark = pytest.mark.usefixtures("fleet")


def test_an_argument_is_binding() -> None:
    selection = hal.select(ask(), backend="cuda:triton")
    assert (selection.backend, selection.source) == ("cuda:triton", "argument")
    assert set(selection.providers.values()) == {"cuda:triton"}


def test_the_environment_is_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_BACKEND", "cuda:other")
    selection = hal.select(ask())
    assert (selection.backend, selection.source) == ("cuda:other", "HAL_BACKEND")


def test_an_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_BACKEND", "cuda:other")
    assert hal.select(ask(), backend="cuda:triton").backend == "cuda:triton"


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_BACKEND", "")
    assert hal.select(ask()).source == "auto"


def test_a_choice_that_cannot_serve_raises_with_reasons_and_alternatives() -> None:
    with pytest.raises(hal.NoBackend) as error:
        hal.select(ask(gqa_layer(head_dim=128)), backend="cuda:fast")
    text = str(error.value)
    assert all(word in text for word in ["cuda:fast", "argument", "head_dim 128", "cuda:triton", "cuda:other"])
    assert codes(error.value.rejected["cuda:fast"]) == ["head_dim"]


def test_a_pinned_variable_that_cannot_serve_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_BACKEND", "cuda:fast")
    with pytest.raises(hal.NoBackend, match="HAL_BACKEND"):
        hal.select(ask(gqa_layer(head_dim=128)))


def test_a_choice_whose_own_check_raises_is_chained_to_it() -> None:
    cause = OSError("libcuda.so.1")

    def explode(cls: type, request: hal.Request) -> tuple[hal.Reason, ...]:
        raise cause

    register(make_backend("cuda:odd", explain_refusal=classmethod(explode)))
    with pytest.raises(hal.NoBackend, match=r"OSError: libcuda.so.1") as error:
        hal.select(ask(), backend="cuda:odd")
    assert error.value.__cause__ is cause
    assert hal.select(ask()).backend == "cuda:fast"


@pytest.mark.parametrize("way", ["argument", "HAL_BACKEND"])
def test_an_unknown_name_is_an_error_that_lists_the_names(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "HAL_BACKEND":
        monkeypatch.setenv("HAL_BACKEND", "cuda:fats")
    with pytest.raises(ValueError, match=r"'cuda:fats'.*cuda:fast, cuda:other, cuda:triton"):
        hal.select(ask(), backend="cuda:fats" if way == "argument" else None)


def test_an_unknown_name_in_the_environment_blames_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_BACKEND", "cuda:nothing")
    with pytest.raises(ValueError, match="HAL_BACKEND"):
        hal.select(ask())
