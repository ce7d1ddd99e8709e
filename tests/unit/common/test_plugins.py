"""Entry points: one that breaks is listed with its exception, and the others load."""

from __future__ import annotations

import importlib.metadata
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import hal
from hal.common.backends import registry as registry_module
from hal.common.backends.plugins import list_plugins
from hal.common.backends.registry import backends, broken_plugins, platforms

from .helpers.fakes import ask, gqa_layer, make_backend

# Made while hal's own platforms are registered: afterwards there are no targets.
PLAIN, WINDOWED = ask(), ask(gqa_layer(window=4))


def entry(name: str, load, distribution: str | None = "plugin-wheel") -> SimpleNamespace:
    owner = SimpleNamespace(name=distribution) if distribution else None
    return SimpleNamespace(name=name, value=f"{name}:PLATFORM", load=load, dist=owner)


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


def test_a_broken_plugin_is_a_rejected_candidate_of_every_request(load_entries) -> None:
    load_entries(entry("bad", fail(OSError("libfoo.so"))), entry("good", lambda: make_backend("cuda:good")))
    with pytest.raises(hal.NoBackend) as error:
        hal.select(WINDOWED)
    (reason,) = error.value.rejected["bad (plugin-wheel)"]
    assert (reason.code, reason.have, reason.want) == ("library_broken", "OSError: libfoo.so", "bad (plugin-wheel)")
    assert "OSError: libfoo.so" in str(error.value)
    assert hal.select(PLAIN).rejected["bad (plugin-wheel)"] == (reason,)


@pytest.mark.parametrize("name", ["bad", "bad:kernels"])
@pytest.mark.parametrize("way", ["argument", "HAL_BACKEND"])
def test_choosing_a_broken_plugin_is_chained_to_its_exception(
    name: str, way: str, load_entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = OSError("libfoo.so")
    load_entries(entry("bad", fail(cause)), entry("worse", fail(KeyError("x"))))
    if way == "HAL_BACKEND":
        monkeypatch.setenv("HAL_BACKEND", name)
    with pytest.raises(ValueError, match=r"bad \(plugin-wheel\) does not load: OSError: libfoo.so") as error:
        hal.select(PLAIN, backend=name if way == "argument" else None)
    chain = [error.value.__cause__, error.value.__cause__ and error.value.__cause__.__cause__]
    assert cause in chain


def test_every_plugin_is_listed_by_name_before_any_is_loaded(load_entries) -> None:
    listed: list[list[str]] = []

    def load() -> None:
        listed.append([str(plugin) for plugin in list_plugins()])
        raise ImportError("enough")

    load_entries(entry("b", load), entry("a", load), entry("c", load, distribution=None))
    assert [plugin.target for plugin in list_plugins()] == ["a:PLATFORM", "b:PLATFORM", "c:PLATFORM"]
    assert listed == []
    platforms()
    assert listed == [["a (plugin-wheel)", "b (plugin-wheel)", "c (unknown distribution)"]] * 3


@pytest.mark.parametrize(
    ("value", "loaded"),
    [(None, ["own", "a", "b"]), ("", ["own", "a", "b"]), ("b", ["own", "b"]), (" a , b", ["own", "a", "b"]), ("none", ["own"])],
)
def test_the_allow_list_names_what_may_be_loaded_beside_hals_own(
    value: str | None, loaded: list[str], load_entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("HAL_PLUGINS", value)
    seen: list[str] = []
    load_entries(
        *(entry(name, lambda name=name: seen.append(name) or make_backend(f"cuda:{name}")) for name in ("b", "a")),
        entry("own", lambda: seen.append("own") or make_backend("cuda:own"), distribution="hal-attention"),
    )
    assert list(backends()) == [f"cuda:{name}" for name in loaded]
    assert seen == loaded
    assert broken_plugins() == {}


def test_a_name_on_the_allow_list_that_nobody_has_is_warned_about(
    load_entries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HAL_PLUGINS", "gpod,good")
    load_entries(entry("good", lambda: make_backend("cuda:good")))
    with caplog.at_level(logging.WARNING, logger="hal"):
        backends()
    (message,) = [record.getMessage() for record in caplog.records]
    assert "gpod" in message
    assert "good (plugin-wheel)" in message


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_leaving_the_program_is_not_a_broken_plugin(error: BaseException, load_entries) -> None:
    load_entries(entry("bad", fail(error)))
    with pytest.raises(type(error)):
        backends()


def test_what_was_interrupted_is_loaded_by_who_asks_next(load_entries) -> None:
    patience = iter([KeyboardInterrupt()])

    def load() -> type[hal.common.contract.backend.Backend]:
        for error in patience:
            raise error
        return make_backend("cuda:b")

    good = make_backend("cuda:c")
    load_entries(entry("b", load), entry("c", lambda: good))
    with pytest.raises(KeyboardInterrupt):
        backends()
    assert list(backends()) == ["cuda:b", "cuda:c"]


def test_threads_that_ask_at_the_same_time_all_see_everything(load_entries) -> None:
    good, ready = make_backend("cuda:good"), threading.Barrier(6)

    def load() -> type[hal.common.contract.backend.Backend]:
        time.sleep(0.02)
        return good

    load_entries(entry("good", load))
    seen: list[list[str]] = []

    def look() -> None:
        ready.wait()
        seen.append(list(backends()))

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["cuda:good"]] * 6


def test_a_plugin_may_register_more_while_it_is_imported(load_entries) -> None:
    def load() -> type[hal.common.contract.backend.Backend]:
        hal.register_backend(make_backend("cuda:extra"))
        return make_backend("cuda:good")

    load_entries(entry("good", load))
    assert sorted(backends()) == ["cuda:extra", "cuda:good"]


def test_a_plugin_that_greets_is_not_heard(load_entries, capsys: pytest.CaptureFixture[str]) -> None:
    load_entries(entry("loud", lambda: print("welcome") or make_backend("cuda:loud")))
    assert list(backends()) == ["cuda:loud"]
    assert capsys.readouterr().out == ""


def test_no_plugin_takes_a_name_of_hals_own(load_entries) -> None:
    own, foreign = make_backend("cuda:triton"), make_backend("cuda:triton")
    load_entries(entry("a", lambda: foreign), entry("own", lambda: own, distribution="hal-attention"))
    assert backends() == {"cuda:triton": own}
    assert list(broken_plugins()) == ["a (plugin-wheel)"]


LISTS = {
    "no value": (b"[hal.backends]\ncuda\n", True),
    "bad value in another group": (b"[other]\nx\n[hal.backends]\na = b:c\n", True),
    "no text": (b"\xff\xfe", True),
    "another group alone": (b"[console_scripts]\nx\n", False),
}


@pytest.mark.parametrize(("text", "is_told"), LISTS.values(), ids=LISTS)
def test_a_list_of_entry_points_that_cannot_be_read_costs_its_distribution_alone(
    text: bytes, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lines in {"broken_wheel": text, "good_wheel": b"[hal.backends]\ngood = json:loads\n"}.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_bytes(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry_module, "_registry", registry_module._Registry())
    assert hal.detect()[-1].target == "cpu"
    assert "good (good_wheel)" in broken_plugins()
    assert ("entry points (broken_wheel)" in broken_plugins()) == is_told


def test_hals_own_platforms_are_registered_with_every_name_of_the_contract() -> None:
    assert set(platforms()) >= {"cpu", "cuda", "rocm", "xpu"}
    names = """cpu cuda:flash_attention cuda:flash_mla cuda:flashinfer rocm:aiter xpu:vllm_kernels xpu:ipex
        cuda:triton rocm:triton xpu:triton"""
    assert set(backends()) >= set(names.split())
    assert broken_plugins() == {}
    assert all(name.partition(":")[0] == cls.platform for name, cls in backends().items())
