"""The operators against the float64 reference: every case of the suite that the CPU backend is held to."""

from __future__ import annotations

import pytest

from hal.common.device import Device
from hal.common.registry import find_backend
from hal.testing import FULL, Case, conformance_cases

from .facade import through_operators

OPERATORS = through_operators(find_backend("cpu"))


@pytest.mark.parametrize("case", conformance_cases(OPERATORS, FULL), ids=lambda case: case.id)
def test_call(case: Case) -> None:
    case.check(OPERATORS(Device.from_arch("cpu")))
