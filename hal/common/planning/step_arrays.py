"""The arrays that a builder keeps for its steps: their shapes, and where each lies in one block of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hal.common.contract.buffer import Buffer
from hal.common.contract.layouts import block_table_width
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.common.contract.step import MLAKind, mla_kind
from hal.config import ModelShape

from .buffers import context_rows
from .row_rules import row_regions, row_rules

if TYPE_CHECKING:
    from hal.common.contract.cache_groups import CacheGroup

Region = tuple[tuple[int, ...], str]

ALIGNMENT = 64
"""Bytes that every array's address is a multiple of."""


def list_regions(
    shape: ModelShape, limits: Limits, parallel: Parallel, block_size: int, groups: Sequence[CacheGroup]
) -> dict[str, Region]:
    """Every array of a plan's builder by name: its shape and its element type."""
    requests, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    width = block_table_width(limits.max_model_len, block_size, parallel.dcp)
    regions = step_regions(requests, tokens, width, max(1, len(groups)))
    regions |= row_regions(row_rules(groups), requests, tokens)
    numbers = [count_run_numbers(kind, limits, parallel, block_size) for kind in decompressed_kinds(shape, parallel)]
    return regions | {"runs": ((sum(numbers),), "int32")}


def place_regions(regions: Mapping[str, Region]) -> tuple[dict[str, int], int]:
    """The byte at which each array begins in one block, and the bytes of the block."""
    offsets, end = {}, 0
    for name, (shape, dtype) in regions.items():
        offsets[name] = end
        end += -(-Buffer(name=name, shape=shape, dtype=dtype).nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, max(end, 1)


def decompressed_kinds(shape: ModelShape, parallel: Parallel) -> tuple[MLAKind, ...]:
    """The kinds of MLA layers whose context may be decompressed: none over DCP ranks, where other ranks' latents are not here."""
    kinds = dict.fromkeys(mla_kind(layer) for layer in shape.layers) if parallel.dcp == 1 else {}
    return tuple(kind for kind in kinds if kind is not None)


def count_run_numbers(kind: MLAKind, limits: Limits, parallel: Parallel, block_size: int) -> int:
    """The most numbers that one kind's runs place: a run has two per request, a chunk three per request that it covers."""
    requests = limits.max_num_seqs
    least_rows = max(1, context_rows(limits, block_size, parallel, kind.topk) - block_size)
    chunks = -(-requests * limits.max_model_len // least_rows)
    return 3 * requests + 3 * 2 * (requests + chunks) + 2 * chunks


def step_regions(max_requests: int, max_tokens: int, table_width: int, num_groups: int) -> dict[str, Region]:
    """The arrays of a step: those of the engine's order, and those of the execution order (decodes first).

    num_counted: so many requests of one token each are numbered by now in both orders, and need not be again.
    """
    return {
        "positions": ((max_tokens,), "int64"),
        "token_order": ((max_tokens,), "int64"),
        "slots": ((num_groups, max_tokens), "int64"),
        "req_id": ((max_tokens,), "int32"),
        "phase_req_id": ((max_tokens,), "int32"),
        "key_bounds": ((max_tokens,), "int32"),
        "starts": ((max_requests + 1,), "int32"),
        "seq_lens": ((max_requests,), "int32"),
        "decode_starts": ((max_requests + 1,), "int32"),
        "prefill_starts": ((max_requests + 1,), "int32"),
        "ordered_lens": ((max_requests,), "int32"),
        "tables": ((num_groups, max_requests, table_width), "int32"),
        "ordered_tables": ((num_groups, max_requests, table_width), "int32"),
        "num_counted": ((1,), "int32"),
    }
