"""Every buffer that a plan needs beside the caches, by name and size, before any of them exists."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod

from hal.config import ModelShape
from hal.config.dtypes import item_size

from .layouts import block_table_width
from .limits import Limits
from .parallel import Parallel

_MAX_CONTEXT_ROWS = 65536
# Keys and values that are expanded from latents at once; more heads than fit are taken one run after the other.
MAX_EXPANDED_BYTES = 256 * 2**20
_ITEM_SIZES = {"int32": 4, "int64": 8, "uint8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer: its name, shape and element type. transient: made during a call and given back, not kept."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    transient: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        size = _ITEM_SIZES[self.dtype] if self.dtype in _ITEM_SIZES else item_size(self.dtype)
        return prod(self.shape) * size


def context_rows(limits: Limits, block_size: int, parallel: Parallel, topk: int | None = None) -> int:
    """Context tokens gathered at once, a multiple of the page size.

    Wide enough for several requests and no wider than 65536 rows; with an indexer, chunks need not hold more than every
    request's choice, since longer contexts are read sparsely.
    """
    alignment = block_size if parallel.dcp == 1 else lcm(block_size, parallel.dcp * parallel.interleave)
    rows = min(max(8 * limits.max_model_len, 4 * limits.max_num_seqs * block_size), _MAX_CONTEXT_ROWS)
    if topk is not None:
        rows = max(min(rows, limits.max_num_seqs * topk), block_size)
    rows = min(rows, -(-limits.max_model_len // block_size) * block_size * limits.max_num_seqs)
    return -(-max(rows, alignment) // alignment) * alignment


def plan_buffers(
    shape: ModelShape, limits: Limits, parallel: Parallel, dtype: str, block_size: int, num_groups: int
) -> tuple[Buffer, ...]:
    """The buffers of a step: metadata, the indexer's choice and scores, gathered context."""
    requests, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    width = block_table_width(limits.max_model_len, block_size, parallel.dcp)
    buffers = [
        Buffer(name="request arrays", shape=(6, requests + 1), dtype="int32"),
        Buffer(name="token arrays", shape=(4, tokens), dtype="int64"),
        Buffer(name="block tables", shape=(2 * max(1, num_groups), requests, width), dtype="int32"),
    ]
    layer = next((layer for layer in shape.layers if layer.indexer is not None), None)
    topk = None
    if layer is not None and layer.indexer is not None:
        topk = layer.indexer.topk
        scores = min(limits.max_logits_bytes // 4, tokens * limits.max_model_len)
        buffers.append(Buffer(name="top-k", shape=(tokens, layer.indexer.width), dtype="int32"))
        buffers.append(Buffer(name="index scores", shape=(scores,), dtype="float32", transient=True))
    latent = next((layer for layer in shape.layers if layer.mla is not None), None)
    if latent is not None and latent.mla is not None:
        rows = context_rows(limits, block_size, parallel, topk)
        per_head = rows * (latent.head_dim + latent.v_head_dim)
        heads = max(1, min(latent.num_heads // parallel.tp, MAX_EXPANDED_BYTES // (per_head * item_size(dtype))))
        buffers.append(Buffer(name="context", shape=(rows, latent.mla.latent_dim), dtype=dtype, transient=True))
        buffers.append(Buffer(name="expanded context", shape=(heads * per_head,), dtype=dtype, transient=True))
    return tuple(buffers)
