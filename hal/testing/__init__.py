"""Holds any backend to the contract: a float64 reference of every call and a conformance suite made of it.

for case in conformance_cases(MyBackend, SMALL):
    case.check(MyBackend(device))

Kernels in Triton's interpreter (TRITON_INTERPRET=1) need repair_interpreter() before bfloat16 or fp8 means anything there;
conformance_cases sees to it.
"""

from hal.common.contract.extras import naming_extra

with naming_extra("hal.testing"):
    from hal.common.triton.interpreter import repair_interpreter

    from .case import FULL, SMALL, Case, Profile
    from .compare import ConformanceError
    from .reference_backend import ReferenceBackend
    from .suite import conformance_cases

__all__ = ["FULL", "SMALL", "Case", "ConformanceError", "Profile", "ReferenceBackend", "conformance_cases", "repair_interpreter"]
