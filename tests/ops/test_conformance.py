"""The operators against the float64 reference: every kind of case; the sizes are crossed where the CPU backend itself is held."""

from __future__ import annotations

import pytest

from hal.common.backends.registry import find_backend
from hal.common.contract.device import Device
from hal.testing import SMALL, Case, conformance_cases

from .helpers.facade import through_operators

OPERATORS = through_operators(find_backend("cpu"))


@pytest.mark.parametrize("case", conformance_cases(OPERATORS, SMALL), ids=lambda case: case.id)
def test_an_operator_does_what_the_contract_says(case: Case) -> None:
    case.check(OPERATORS(Device.from_arch("cpu")))
