"""The same cases on libraries that are really here and run on CPU tensors; elsewhere skipped, with what is missing."""

from __future__ import annotations

import importlib.util

import pytest

from hal.testing import Case

from .cells import CELLS, Cell, Held

(LEGACY,) = [cell for cell in CELLS if cell.library == "ipex"]
CASES = [(LEGACY, held, case) for held in LEGACY.held for case in LEGACY.cases(held)]
MODULE = "intel_extension_for_pytorch"


@pytest.mark.skipif(importlib.util.find_spec(MODULE) is None, reason=f"{MODULE} is not installed; `make test-ipex` installs it")
@pytest.mark.parametrize(("cell", "held", "case"), CASES, ids=[case.id for _, _, case in CASES])
def test_library_itself_keeps_the_contract_behind_its_adapter(cell: Cell, held: Held, case: Case) -> None:
    case.check(cell.adapter(held)(cell.device))
