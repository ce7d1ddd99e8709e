"""Facts about kernels: what a file may say, and that every file here says what it can be held to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hal.common.backends.registry import backends
from hal.common.contract.arch import read_archs
from hal.common.vendor import KernelFacts, VendorBackend, read_kernels
from hal.common.vendor.refusal import is_known_version
from hal.matrix.signatures import read_signatures

ADAPTERS = [cls for cls in backends().values() if issubclass(cls, VendorBackend)]
KERNELS = [(cls, kernel) for cls in ADAPTERS for kernel in cls.kernels]
IDS = [f"{cls.name}-{kernel.name}" for cls, kernel in KERNELS]
BASE = "library = 'x'\napi = 'x'\ncall = 'sparse_mla'\ntarget = 'x:y'\narchs = ['a']\ndtypes = ['bfloat16']\n"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / f"facts_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def read(text: str) -> tuple[KernelFacts, ...]:
        (package / "facts.toml").write_text(text)
        return read_kernels(package.name, "facts.toml")

    return read


def test_row_starts_from_what_it_is_like(read) -> None:
    (kernel,) = read(f"[shared.base]\n{BASE}[kernel.one]\nlike = 'base'\nfamilies = ['mla']\ndtypes = ['float16']\n")
    assert (kernel.name, kernel.library, kernel.families, kernel.dtypes) == ("one", "x", ("mla",), ("float16",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"[kernel.one]\n{BASE}families = ['mla']\nheads = 4\n", r"unknown columns \['heads'\]"),
        (f"[kernel.one]\n{BASE}", r"lacks \['families'\]"),
        ("[kernel.one]\nlike = 'nothing'\n", "like 'nothing'"),
    ],
)
def test_row_that_does_not_fit_is_named(read, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"kernel one.*{words}"):
        read(text)


@pytest.mark.parametrize(("cls", "kernel"), KERNELS, ids=IDS)
def test_row_names_things_that_exist(cls: type[VendorBackend], kernel: KernelFacts) -> None:
    assert set(kernel.archs) <= {arch.name for arch in read_archs(f"hal.{cls.platform}")}
    assert kernel.call in (cls.provides or ())
    assert kernel.library in {library.name for library in (*cls.libraries, *cls.alternatives)}
    assert set(kernel.families) <= {"attention", "mla", "sparse_mla"}
    assert set(kernel.phases) <= {"decode", "prefill"}


@pytest.mark.parametrize(("cls", "kernel"), KERNELS, ids=IDS)
def test_recorded_release_is_one_whose_interface_is_known(cls: type[VendorBackend], kernel: KernelFacts) -> None:
    targets = (kernel.target, *kernel.other_targets)
    releases = {row.release for row in read_signatures() if row.library == kernel.library and row.target in targets}
    assert any(is_known_version(kernel, release) for release in releases)


@pytest.mark.parametrize(
    ("version", "known"),
    [("3.0.0", True), ("3.5", True), ("2.9", False), ("4.0.0", False), ("unknown", False), ("", False), ("3.0.0b1+cu12", True)],
)
def test_version_is_known_between_its_bounds(version: str, known: bool) -> None:
    kernel = next(kernel for _, kernel in KERNELS if kernel.name == "fa3_sparse")
    assert is_known_version(kernel, version) == known


def test_heads_are_padded_to_the_next_compiled_count() -> None:
    kernel = next(kernel for _, kernel in KERNELS if kernel.name == "fa4_sparse")
    assert [kernel.padded_heads(heads) for heads in (1, 8, 9, 64, 65, 128)] == [8, 8, 16, 64, 128, 128]
    assert kernel.most_heads == 128


def test_a_kernel_takes_the_page_sizes_that_its_facts_give() -> None:
    kernel = next(kernel for _, kernel in KERNELS if kernel.name == "paged_decode")
    assert [size for size in (1, 8, 16, 32, 48, 64, 96, 128, 256) if kernel.takes_block_size(size)] == [16, 32, 64, 128, 256]
