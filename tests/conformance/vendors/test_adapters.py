"""The conformance suite, unchanged, through every adapter and a stand-in of its library in every recorded release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal.testing import Case
from hal.testing.proof import Prove

from .helpers.cells import CELLS, Cell, Held


def cases() -> Iterator[object]:
    for cell in CELLS:
        for held in cell.held:
            for case in cell.cases(held):
                yield pytest.param(cell, held, case, id="-".join(filter(None, (cell.id, held.note, case.id))))


@pytest.mark.parametrize(("cell", "held", "case"), list(cases()))
def test_adapter_keeps_the_contract(cell: Cell, held: Held, case: Case, prove: Prove) -> None:
    means = f"a stand-in of {cell.library} {cell.release}"
    prove(case, backend=cell.backend, arch=cell.device.arch, state="emulated", means=means)
    with cell.installed():
        case.check(cell.adapter(held)(cell.device))


def test_every_recorded_release_that_an_adapter_calls_is_held_to_it() -> None:
    from hal.common.backends.registry import backends
    from hal.common.vendor import VendorBackend

    from .helpers.cells import SIGNATURES

    targets = {
        target
        for cls in backends().values()
        if issubclass(cls, VendorBackend)
        for kernel in cls.kernels
        for target in (kernel.target, *kernel.other_targets)
    }
    called = {(row.library, row.release) for row in SIGNATURES if row.target in targets}
    assert called == {(cell.library, cell.release) for cell in CELLS}
    assert targets == {row.target for row in SIGNATURES if row.target in targets}
