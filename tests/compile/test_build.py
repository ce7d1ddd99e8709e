"""Compilers and their failures: kernels that must be refused, and sources that break the compiler."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace

import pytest

from hal.matrix.build import Built, Job, build, build_all
from hal.matrix.figures import find_faults
from hal.matrix.fleet import read_fleet
from hal.matrix.targets import find_arch, find_toolchain, make_target

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("an interpreted kernel cannot be compiled", allow_module_level=True)

from .helpers.careless import Careless

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
PROOFS = {proof.platform: proof for proof in read_fleet()}


def job(target: str, source: object) -> Job:
    platform, _, arch = target.partition(":")
    return Job(source=source, proof=PROOFS[platform], arch=find_arch(platform, arch))  # type: ignore[arg-type]


def broken(make: partial[object]) -> SimpleNamespace:
    return SimpleNamespace(to_source=make, options={})


CARELESS = {
    "spills-sm_90": ("cuda:sm_90", Careless(64, 32, 512, num_stages=2), ["spills"]),
    "spills-gfx942": ("rocm:gfx942", Careless(32, 32, 512, num_warps=8), ["spills"]),
    "too_large-sm_120": ("cuda:sm_120", Careless(64, 64, 512, num_stages=2), ["shared memory", "spills"]),
    "empty-sm_100": ("cuda:sm_100", Careless(128, 128, 512, num_stages=2), ["shared memory", "matrix instructions", "stores"]),
}


@pytest.mark.parametrize(("target", "source", "words"), CARELESS.values(), ids=CARELESS)
def test_careless_kernel_is_refused(target: str, source: Careless, words: list[str]) -> None:
    made = job(target, source)
    built = build(made)
    assert built.figures is not None, built.refusal
    faults = find_faults(built.figures, made.arch)
    assert len(faults) == len(words), faults
    assert all(word in fault for word, fault in zip(words, faults, strict=True)), faults


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_100", "rocm:gfx90a", "rocm:gfx950", "rocm:gfx1201"])
def test_modest_kernel_is_good(target: str) -> None:
    made = job(target, Careless(16, 16, 64))
    built = build(made)
    assert built.figures is not None, built.refusal
    assert find_faults(built.figures, made.arch) == ()
    assert built.figures.asked_matrix == 2
    assert built.figures.registers


def test_what_a_compiler_raises_is_one_line() -> None:
    built = build(job("cuda:sm_90", broken(partial(int, "no number"))))
    assert built == Built(figures=None, refusal="ValueError: invalid literal for int() with base 10: 'no number'")


def test_an_arch_that_the_compiler_does_not_know_is_a_refusal() -> None:
    arch = find_arch("rocm", "gfx942")
    made = Job(source=Careless(16, 16, 64), proof=PROOFS["cuda"], arch=arch)
    built = build(made)
    assert built.figures is None
    assert built.refusal


def test_a_compiler_that_dies_takes_no_other_answer_with_it() -> None:
    dying, failing = broken(partial(os._exit, 3)), broken(partial(int, "x"))
    done: list[int] = []
    built = build_all([job("cuda:sm_90", one) for one in (failing, dying, failing)], 2, lambda: done.append(1))
    assert [one.refusal.partition(":")[0] for one in built] == [
        "ValueError",
        "the compiler's process died without a word",
        "ValueError",
    ]
    assert len(done) == 3


def test_targets_are_named_as_triton_names_them() -> None:
    cuda = make_target(PROOFS["cuda"].compiler, find_arch("cuda", "sm_103"))  # type: ignore[arg-type]
    rocm = make_target(PROOFS["rocm"].compiler, find_arch("rocm", "gfx1100"))  # type: ignore[arg-type]
    assert (cuda.backend, cuda.arch, cuda.warp_size) == ("cuda", 103, 32)
    assert (rocm.backend, rocm.arch, rocm.warp_size) == ("hip", "gfx1100", 32)


def test_toolchain_names_version_and_compilers() -> None:
    found = find_toolchain()
    assert found.version is not None
    assert found.compilers
