"""What counts as a fault, on figures made up for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hal.matrix.compile import KernelRow, find_idle_spills
from hal.matrix.figures import Figures, count_asked, find_faults
from hal.matrix.fleet import read_fleet
from hal.matrix.targets import find_arch

SM_80 = find_arch("cuda", "sm_80")
GOOD = Figures(shared_bytes=166912, registers=255, spills=0, matrix=3, stores=2, asked_matrix=3, asked_stores=2)

FAULTS = {
    "shared_memory": ({"shared_bytes": 166913}, "takes 166,913 bytes of shared memory; sm_80 has 166,912"),
    "registers": ({"registers": 256}, "takes 256 registers per thread; sm_80 has 255"),
    "spills": ({"spills": 8}, "spills 8 where none are allowed: it has 3 products"),
    "no_matrix": ({"matrix": 0}, "has 0 matrix instructions for 3 products"),
    "lost_products": ({"matrix": 2}, "has 2 matrix instructions for 3 products"),
    "lost_stores": ({"stores": 1}, "has 1 stores of 2: the compiler has lost what it computes"),
    "empty": ({"stores": 0, "asked_stores": 0}, "has 0 stores of 1: the compiler has lost what it computes"),
}


def test_figures_at_the_limits_are_good() -> None:
    assert find_faults(GOOD, SM_80) == ()


@pytest.mark.parametrize(("change", "text"), FAULTS.values(), ids=FAULTS)
def test_fault_is_told_with_its_figures(change: dict[str, int], text: str) -> None:
    assert find_faults(replace(GOOD, **change), SM_80) == (text,)


def test_every_fault_is_told() -> None:
    changes = {name: value for change, _ in list(FAULTS.values())[:4] for name, value in change.items()}
    assert len(find_faults(replace(GOOD, **changes), SM_80)) == 4


def test_kernel_without_products_may_spill() -> None:
    assert find_faults(replace(GOOD, spills=64, matrix=0, asked_matrix=0), SM_80) == ()


def test_what_may_spill_does_and_nothing_else_with_products() -> None:
    assert find_faults(replace(GOOD, spills=64), SM_80, may_spill=True) == ()
    assert find_faults(replace(GOOD, spills=64), SM_80) != ()


def test_scalar_spills_take_no_memory() -> None:
    assert find_faults(replace(GOOD, scalar_spills=12), SM_80) == ()


def test_what_a_format_does_not_tell_is_no_fault() -> None:
    assert find_faults(replace(GOOD, registers=None, spills=None), SM_80) == ()


@pytest.mark.parametrize(("kind", "asked"), [("bf16", 1), ("f16", 1), ("f8E4M3FN", 1), ("i8", 1), ("f32", 0)])
def test_products_of_short_types_are_asked_for(kind: str, asked: int) -> None:
    line = f"%s = tt.dot %a, %b, %c : tensor<16x64x{kind}> * tensor<64x32x{kind}> -> tensor<16x32xf32> loc(#loc1)"
    assert count_asked(line) == (asked, 0)


def test_stores_are_asked_for() -> None:
    text = "tt.store %p, %v, %m : tensor<16x!tt.ptr<f32>>\n %x = tt.load %p : tensor<16x!tt.ptr<f32>>\n tt.store %p, %v"
    assert count_asked(text) == (0, 2)


def test_a_listed_kernel_that_spills_nothing_has_to_leave_the_list() -> None:
    (proof,) = (proof for proof in read_fleet() if proof.platform == "rocm")
    arch, kernel = next(iter(proof.spills))
    row = KernelRow(target=f"rocm:{arch}", kernel=kernel, models=(), specialisation=None, figures=GOOD, faults=())
    other = replace(row, kernel="some:other")
    idle, kept = find_idle_spills([row, other])
    assert "take its [[spill]] away" in idle.faults[0]
    assert kept == other
    spilling = replace(row, figures=replace(GOOD, spills=1))
    assert list(find_idle_spills([row, spilling])) == [row, spilling]
