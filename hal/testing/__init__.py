"""Holds any backend to the contract: a float64 reference of every call and a conformance suite made of it.

for case in conformance_cases(MyBackend, SMALL):
    case.check(MyBackend(device))
"""

from .case import FULL, SMALL, Case, Profile
from .compare import ConformanceError
from .fake import ReferenceBackend
from .suite import conformance_cases

__all__ = ["FULL", "SMALL", "Case", "ConformanceError", "Profile", "ReferenceBackend", "conformance_cases"]
