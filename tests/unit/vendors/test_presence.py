"""Which libraries are here: from metadata and files, never by importing one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hal.common.contract.software import Library
from hal.common.vendor import VendorLibrary, find_libraries

COMPILED = VendorLibrary(name="fork", distributions=("fork-dist",), files=("fork/_kernels*.so",))
PAIR = VendorLibrary(name="pair", distributions=("pair-dist",), modules=("pair_cuda",))
PLAIN = Library(name="plain", distributions=("other-name", "plain-dist"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, version: str, *paths: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path in paths:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text("raise OSError('this must not be imported')\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in paths))


def test_version_comes_from_metadata(site: Path) -> None:
    install(site, "plain-dist", "1.2.3+cpu", "plain.py")
    before = set(sys.modules)
    found = find_libraries([PLAIN, COMPILED, PAIR])
    assert (found.version("plain"), found.failure("plain")) == ("1.2.3+cpu", None)
    assert found.version("fork") is None
    assert not {name for name in set(sys.modules) - before if name.startswith(("plain", "fork", "pair"))}


def test_distribution_without_its_compiled_part_is_broken(site: Path) -> None:
    install(site, "fork-dist", "0.33", "fork/__init__.py")
    assert "fork/_kernels*.so" in (find_libraries([COMPILED]).failure("fork") or "")


def test_distribution_with_its_compiled_part_is_not(site: Path) -> None:
    install(site, "fork-dist", "0.33", "fork/__init__.py", "fork/_kernels.abi3.so")
    assert find_libraries([COMPILED]).failure("fork") is None


def test_module_is_looked_for_and_not_run(site: Path) -> None:
    install(site, "pair-dist", "2.8.3", "pair/__init__.py")
    assert "pair_cuda" in (find_libraries([PAIR]).failure("pair") or "")
    (site / "pair_cuda.py").write_text("raise OSError('this must not be imported')\n")
    assert find_libraries([PAIR]).failure("pair") is None
    assert "pair_cuda" not in sys.modules


@pytest.mark.parametrize("error", [OSError("unreadable"), KeyError("Version"), RuntimeError("odd")])
def test_metadata_that_cannot_be_read_is_a_reason(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Broken:
        @property
        def version(self) -> str:
            raise error

    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Broken())
    found = find_libraries([PLAIN])
    assert found.version("plain") == "unknown"
    assert found.failure("plain") == f"{type(error).__name__}: {error}"
