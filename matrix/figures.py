"""What a compiled kernel takes and holds, and whether an arch can live with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hal.common.contract.arch import Arch

# Products of wider types may be done by plain multiplications: no arch has to have a matrix instruction for them.
_SHORT = r"(?:bf16|f16|f8\w+|i8)"
_PRODUCT = re.compile(rf"\btt\.dot\b.* : tensor<[\dx]+x{_SHORT}[,>]")
_STORE = re.compile(r"\btt\.(?:store|descriptor_store|atomic_rmw)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts of one binary; None where the format does not tell.

    spills: vector registers kept in memory, in the unit of the format (bytes of stack in a cubin, registers in an hsaco).
    scalar_spills: scalar registers kept in lanes of vector ones, which costs no memory. matrix, stores: such instructions.
    asked_matrix, asked_stores: products of short types and stores in the kernel as Triton saw it.
    """

    shared_bytes: int
    registers: int | None
    spills: int | None
    scalar_spills: int = 0
    matrix: int
    stores: int
    asked_matrix: int
    asked_stores: int


def count_asked(ttir: str) -> tuple[int, int]:
    """(products of short types, stores) in Triton's own intermediate text, before any compiler could lose them."""
    return len(_PRODUCT.findall(ttir)), len(_STORE.findall(ttir))


def find_faults(figures: Figures, arch: Arch, *, may_spill: bool = False) -> tuple[str, ...]:
    """What an arch cannot live with, each as a sentence with its figures; empty where all is well.

    A kernel with products may not spill: its loop would wait for memory. One without may, and so may a repair, whose loop
    runs for no step but those that read NaN or infinities, and what a platform's file lists; their figures are only shown.
    """
    return tuple(_list_faults(figures, arch, may_spill))


def _list_faults(figures: Figures, arch: Arch, may_spill: bool) -> Iterator[str]:
    shared, registers = arch.shared_memory_bytes, arch.registers_per_thread
    if shared is not None and figures.shared_bytes > shared:
        yield f"takes {figures.shared_bytes:,} bytes of shared memory; {arch.name} has {shared:,}"
    if registers is not None and figures.registers is not None and figures.registers > registers:
        yield f"takes {figures.registers} registers per thread; {arch.name} has {registers}"
    if figures.asked_matrix and figures.spills and not may_spill:
        yield f"spills {figures.spills} where none are allowed: it has {figures.asked_matrix} products"
    if figures.matrix < figures.asked_matrix:
        yield f"has {figures.matrix} matrix instructions for {figures.asked_matrix} products"
    if figures.stores < max(1, figures.asked_stores):
        yield f"has {figures.stores} stores of {max(1, figures.asked_stores)}: the compiler has lost what it computes"
