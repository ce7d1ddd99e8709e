"""Entry points: one that breaks is listed with its exception, and the others load."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from hal.common import registry as registry_module
from hal.common.registry import backends, broken_plugins, platforms

from .fakes import make_backend


def entry(name: str, load, distribution: str | None = "plugin-wheel") -> SimpleNamespace:
    return SimpleNamespace(name=name, load=load, dist=SimpleNamespace(name=distribution) if distribution else None)


def fail(error: BaseException):
    def load() -> None:
        raise error

    return load


@pytest.fixture
def load_entries(monkeypatch: pytest.MonkeyPatch):
    """Loads a registry from these entry points alone."""

    def load(*entries: SimpleNamespace) -> None:
        monkeypatch.setattr(registry_module, "_registry", registry_module._Registry())
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: list(entries) if group == "hal.backends" else [])

    return load


@pytest.mark.parametrize("error", [ImportError("libfoo.so"), KeyError("x"), OSError("no driver"), RuntimeError("boom")], ids=repr)
def test_a_plugin_that_raises_is_listed_and_the_others_load(error: Exception, load_entries) -> None:
    good = make_backend("cuda:good")
    load_entries(entry("bad", fail(error)), entry("good", lambda: good))
    assert backends() == {"cuda:good": good}
    ((where, why),) = broken_plugins().items()
    assert where == "bad (plugin-wheel)"
    assert why == f"{type(error).__name__}: {error}"


def test_a_plugin_that_is_refused_is_listed_with_what_it_lacks(load_entries) -> None:
    load_entries(entry("bad", lambda: make_backend("cuda:bad", without=("write_cache",)), distribution=None))
    assert backends() == {}
    ((where, why),) = broken_plugins().items()
    assert "unknown distribution" in where
    assert why.startswith("BackendError: ")
    assert "write_cache" in why


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_leaving_the_program_is_not_a_broken_plugin(error: BaseException, load_entries) -> None:
    load_entries(entry("bad", fail(error)))
    with pytest.raises(type(error)):
        backends()


def test_hals_own_platforms_are_registered_with_every_name_of_the_contract() -> None:
    assert set(platforms()) >= {"cpu", "cuda", "rocm", "xpu"}
    names = """cpu cuda:flash_attention cuda:flash_mla cuda:flashinfer rocm:aiter xpu:kernels xpu:ipex
        cuda:triton rocm:triton xpu:triton"""
    assert set(backends()) >= set(names.split())
    assert broken_plugins() == {}
    assert all(name.partition(":")[0] == cls.platform for name, cls in backends().items())
