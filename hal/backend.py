"""What a platform's author needs: the base classes, what they declare, the values that calls take and what they raise.

TritonBackend is the base of a platform's portable backend, with the shared Triton kernels behind every call; a vendor's backend
inherits it or, on a platform without Triton, Backend itself. Importing this loads neither torch nor triton.
"""

from hal.common.arch import Arch
from hal.common.backend import Backend
from hal.common.buffer import Buffer
from hal.common.capabilities import Capabilities
from hal.common.compressor import Compressor
from hal.common.errors import BackendError, BatchError, LayoutError
from hal.common.kernels import IndexerChunk, KVCache, PagedBatch, Segment
from hal.common.parallel import Parallel
from hal.common.platform import Platform
from hal.common.reason import Reason
from hal.common.request import Request
from hal.common.software import Library, Software
from hal.common.triton.backend import TritonBackend

__all__ = [
    "Arch",
    "Backend",
    "BackendError",
    "BatchError",
    "Buffer",
    "Capabilities",
    "Compressor",
    "IndexerChunk",
    "KVCache",
    "LayoutError",
    "Library",
    "PagedBatch",
    "Parallel",
    "Platform",
    "Reason",
    "Request",
    "Segment",
    "Software",
    "TritonBackend",
]
