"""What every adapter of a vendor's library needs: facts as data, calls as values, and one place that makes them."""

from .adapter import VendorBackend
from .call import VendorCall
from .declared import narrow
from .facts import KernelFacts, read_kernels
from .inputs import AttentionInputs
from .presence import VendorLibrary, find_libraries
from .resolve import Resolver

__all__ = [
    "AttentionInputs",
    "KernelFacts",
    "Resolver",
    "VendorBackend",
    "VendorCall",
    "VendorLibrary",
    "find_libraries",
    "narrow",
    "read_kernels",
]
