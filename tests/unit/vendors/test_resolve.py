"""Finding vendor functions: what is absent, what is broken, and what is said of each."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from hal.common.contract.errors import BackendError
from hal.common.vendor import Resolver, VendorCall
from hal.common.vendor.resolve import AbsentError, check_flag, load_module


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of importable modules, emptied from sys.modules afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_function_is_called_with_what_it_takes(library: Path) -> None:
    (library / "vendor_a.py").write_text("class Box:\n    @classmethod\n    def run(cls, a, b=2):\n        return a, b\n")
    call = VendorCall(target="vendor_a:Box.run", kwargs={"a": 1, "extra": 3}, optional=frozenset({"extra"}))
    assert Resolver().call(call) == (1, 2)


def test_second_place_is_looked_at_where_the_first_is_not_there(library: Path) -> None:
    (library / "vendor_b.py").write_text("def run():\n    return 'b'\n")
    for first in ("vendor_missing:run", "vendor_b:other"):
        assert Resolver().call(VendorCall(target=first, kwargs={}, other_targets=("vendor_b:run",))) == "b"


@pytest.mark.parametrize("target", ["vendor_missing:run", "vendor_missing.sub.module:run", "json:nothing"])
def test_absent_is_told_from_broken(target: str) -> None:
    with pytest.raises(AbsentError):
        Resolver().find(target)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("OSError('libcuda.so.1')", "OSError"),
        ("KeyError('lib')", "KeyError"),
        ("RuntimeError('no ROCm')", "RuntimeError"),
        ("ModuleNotFoundError(\"No module named 'cutlass'\", name='cutlass')", "ModuleNotFoundError"),
        ("ImportError('undefined symbol')", "ImportError"),
    ],
)
def test_library_that_raises_at_import_is_broken_and_the_cause_is_kept(library: Path, error: str, name: str) -> None:
    (library / "vendor_c.py").write_text(f"raise {error}\n")
    with pytest.raises(BackendError, match=f"vendor_c is installed and does not load: {name}") as caught:
        Resolver().find("vendor_c:run")
    assert not isinstance(caught.value, AbsentError)
    assert type(caught.value.__cause__).__name__ == name


def test_broken_first_place_is_not_passed_over(library: Path) -> None:
    (library / "vendor_d.py").write_text("raise OSError('half installed')\n")
    (library / "vendor_e.py").write_text("def run():\n    return 'e'\n")
    with pytest.raises(BackendError, match="half installed"):
        Resolver().find("vendor_d:run", "vendor_e:run")


def test_what_a_function_raises_is_chained(library: Path) -> None:
    (library / "vendor_f.py").write_text("def run():\n    raise ValueError('topk 100 is no multiple of 128')\n")
    with pytest.raises(BackendError, match=r"vendor_f:run refused a call: ValueError: topk 100") as caught:
        Resolver().call(VendorCall(target="vendor_f:run", kwargs={}))
    assert isinstance(caught.value.__cause__, ValueError)


def test_flag_that_is_not_true_is_a_reason() -> None:
    module = ModuleType("vendor_g")
    with pytest.raises(BackendError, match="READY is not true: no reason given"):
        check_flag(module, "READY", "WHY")
    module.READY, module.WHY = False, "libze_loader.so.1"
    with pytest.raises(BackendError, match="libze_loader"):
        check_flag(module, "READY", "WHY")
    module.READY = True
    check_flag(module, "READY", "WHY")


def test_interrupt_at_import_is_not_swallowed(library: Path) -> None:
    (library / "vendor_h.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_module("vendor_h")
