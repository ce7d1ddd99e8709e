"""Every call that the suite makes adapters produce fits every recorded signature of the function, without the library."""

from __future__ import annotations

import pytest

from hal.common.contract.errors import BackendError
from hal.common.vendor import VendorCall
from hal.common.vendor.call import fit_arguments
from hal.matrix.signatures import RecordedSignature

from .helpers.cells import CELLS, SIGNATURES, Cell
from .helpers.recording import recorded_calls

# The one argument without which a call means something else, and whose absence selection knows from the version.
NEEDED = {("aiter", "return_lse")}


def distinct(calls: list[VendorCall]) -> list[VendorCall]:
    """One call of each form: target, arguments, and which of them are None."""
    forms = {(call.target, frozenset((name, value is None) for name, value in call.kwargs.items())): call for call in calls}
    return list(forms.values())


def signatures_of(call: VendorCall, library: str) -> list[RecordedSignature]:
    targets = (call.target, *call.other_targets)
    return [row for row in SIGNATURES if row.library == library and row.target in targets]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_calls_bind_to_every_recorded_signature(cell: Cell) -> None:
    with cell.installed(), recorded_calls() as calls:
        for held in cell.held:
            backend = cell.adapter(held)(cell.device)
            for case in cell.cases(held):
                case.check(backend)
    forms = distinct(calls)
    assert forms
    for call in forms:
        rows = signatures_of(call, cell.library)
        assert rows
        for row in rows:
            needed = {name for name in call.kwargs if (row.library, name) in NEEDED} - row.signature.parameters.keys()
            if needed:
                with pytest.raises(BackendError, match=f"no argument {min(needed)}"):
                    fit_arguments(call, row.signature)
            else:
                row.signature.bind(**fit_arguments(call, row.signature))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_scale_is_always_explicit_and_nothing_is_positional(cell: Cell) -> None:
    with cell.installed(), recorded_calls() as calls:
        held = cell.held[-1]
        backend = cell.adapter(held)(cell.device)
        for case in cell.cases(held)[:4]:
            case.check(backend)
    # What plans a call takes nothing of it.
    for call in (call for call in calls if not call.target.endswith(":get_mla_metadata")):
        scales = [value for name, value in call.kwargs.items() if name in ("softmax_scale", "sm_scale", "scale")]
        assert scales
        assert all(isinstance(scale, float) for scale in scales)
