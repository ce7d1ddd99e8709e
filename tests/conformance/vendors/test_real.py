"""What can be held against libraries that are really here: their signatures, and the same cases where they run on the CPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from hal.common.backends.registry import backends
from hal.common.vendor import Resolver, VendorBackend
from hal.matrix.signatures import RecordedSignature
from hal.testing import Case
from hal.testing.proof import Prove

from .helpers.cells import CELLS, SIGNATURES, Cell, Held

(LEGACY,) = [cell for cell in CELLS if cell.library == "ipex"]
CASES = [(LEGACY, held, case) for held in LEGACY.held for case in LEGACY.cases(held)]
MODULE = "intel_extension_for_pytorch"


@pytest.mark.skipif(importlib.util.find_spec(MODULE) is None, reason=f"{MODULE} is not installed; `make test-ipex` installs it")
@pytest.mark.parametrize(("cell", "held", "case"), CASES, ids=[case.id for _, _, case in CASES])
def test_library_itself_keeps_the_contract_behind_its_adapter(cell: Cell, held: Held, case: Case, prove: Prove) -> None:
    means = f"{cell.library} {importlib.metadata.version('intel-extension-for-pytorch')} itself, on a CPU"
    prove(case, backend=cell.backend, arch=cell.device.arch, state="executed", means=means)
    case.check(cell.adapter(held)(cell.device))


def distributions(library: str) -> tuple[str, ...]:
    adapters = [cls for cls in backends().values() if issubclass(cls, VendorBackend)]
    known = [row for cls in adapters for row in (*cls.libraries, *cls.alternatives) if row.name == library]
    return tuple(name for row in known for name in row.distributions)


def is_here(row: RecordedSignature) -> bool:
    for name in distributions(row.library):
        try:
            return importlib.metadata.version(name).startswith(row.release)
        except importlib.metadata.PackageNotFoundError:
            continue
    return False


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: f"{row.library}-{row.release}-{row.target}")
def test_recorded_signature_is_the_installed_ones(row: RecordedSignature) -> None:
    if not is_here(row):
        pytest.skip(f"{row.library} {row.release} is not installed")
    found = Resolver().find(row.target)[1].parameters
    assert list(found) == list(row.signature.parameters)
