"""What a platform's author needs: the base classes, what they declare, the values that calls take and what they raise.

TritonBackend is the base of a platform's portable backend, with the shared Triton kernels behind every call; a vendor's backend
inherits it or, on a platform without Triton, Backend itself. Importing this loads neither torch nor triton.
"""

from hal.common.contract.arch import Arch
from hal.common.contract.backend import Backend
from hal.common.contract.buffer import Buffer
from hal.common.contract.call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.compressor import Compressor
from hal.common.contract.errors import BackendError, BatchError, LayoutError
from hal.common.contract.masking import CAUSAL, Masking
from hal.common.contract.parallel import Parallel
from hal.common.contract.platform import Platform
from hal.common.contract.reason import Reason
from hal.common.contract.request import Request
from hal.common.contract.software import Library, Software
from hal.common.triton.backend import TritonBackend

__all__ = [
    "CAUSAL",
    "Arch",
    "Backend",
    "BackendError",
    "BatchError",
    "Buffer",
    "Capabilities",
    "CompressedBatch",
    "Compressor",
    "IndexerChunk",
    "KVCache",
    "LayoutError",
    "Library",
    "Masking",
    "PagedBatch",
    "Parallel",
    "Platform",
    "Reason",
    "Request",
    "Segment",
    "Software",
    "TritonBackend",
    "VarlenBatch",
]
