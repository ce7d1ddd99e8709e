"""A machine without libraries, devices or variables, to which each test adds what it is about."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import hal.cuda.probe
import hal.rocm.probe
import hal.xpu.probe

FILTERS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ONEAPI_DEVICE_SELECTOR",
)
LIBRARIES = ("pynvml", "amdsmi", "pyrsmi", "pyrsmi.rocml", "pyzes")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in FILTERS:
        monkeypatch.delenv(name, raising=False)
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(hal.cuda.probe, "DRIVER_FILES", tmp_path / "nvidia")
    monkeypatch.setattr(hal.rocm.probe, "TOPOLOGY", tmp_path / "kfd")
    monkeypatch.setattr(hal.xpu.probe, "CARDS", tmp_path / "drm")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Modules made importable by name."""

    def install(**modules: ModuleType) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return install


@pytest.fixture
def raise_on_import(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, BaseException], None]:
    """A module that is there and raises as it is imported."""

    def arrange(name: str, error: BaseException) -> None:
        class Finder:
            def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
                if fullname == name:
                    print("noise on stdout")
                    raise error
                return None

        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
        importlib.invalidate_caches()

    return arrange
