"""MLA over chosen cache rows, several lists of them under one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hal.common.contract.call_values import Segment

from .attending import Attended, define_attending
from .cache_form import make_cache
from .calls import find_sinking
from .operands import ANY, CUBE, FLOATS, INT32, check_operands, leading, sink_operands
from .registration import refuse_gradients


class _Operands(NamedTuple):
    q: torch.Tensor
    storages: list[torch.Tensor]
    scales: list[torch.Tensor | None]
    layouts: list[str]
    block_sizes: list[int]
    rows: list[torch.Tensor]
    valid: list[torch.Tensor]
    kv_lora_rank: int
    softmax_scale: float
    sink: torch.Tensor | None
    backend: str | None


def sparse_mla(
    q: torch.Tensor,
    segments: Sequence[Segment],
    *,
    kv_lora_rank: int,
    softmax_scale: float,
    need_lse: bool = False,
    out: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, kv_lora_rank] and lse [tokens, heads] or None, as Backend.sparse_mla, by the operator."""
    arguments = (
        q,
        [cache.storage for cache, _, _ in segments],
        [cache.scale for cache, _, _ in segments],
        [cache.layout.description for cache, _, _ in segments],
        [cache.block_size for cache, _, _ in segments],
        [rows for _, rows, _ in segments],
        [valid for _, _, valid in segments],
        kv_lora_rank,
        softmax_scale,
        sink,
        backend,
    )
    return _OPERATORS.attend(arguments, need_lse, out)


def _check(operands: _Operands) -> None:
    q, tokens = operands.q, leading(operands.q)
    check_operands(
        "sparse_mla",
        ("q", q, FLOATS, CUBE),
        *((f"storage of segment {i}", each, None, None) for i, each in enumerate(operands.storages)),
        *((f"scale of segment {i}", each, None, None) for i, each in enumerate(operands.scales) if each is not None),
        *((f"rows of segment {i}", each, INT32, (tokens, ANY)) for i, each in enumerate(operands.rows)),
        *((f"valid of segment {i}", each, INT32, (tokens,)) for i, each in enumerate(operands.valid)),
        *sink_operands(q, operands.sink),
    )
    refuse_gradients(q, operands.storages, operands.scales, operands.sink)


def _run(operands: _Operands, need_lse: bool, out: torch.Tensor | None) -> Attended:
    stored = zip(operands.storages, operands.scales, operands.layouts, operands.block_sizes, strict=True)
    caches = [make_cache(*each) for each in stored]
    attended: Attended = find_sinking(operands.backend, operands.q.device, "sparse_mla")(
        operands.q,
        [Segment(*segment) for segment in zip(caches, operands.rows, operands.valid, strict=True)],
        kv_lora_rank=operands.kv_lora_rank,
        softmax_scale=operands.softmax_scale,
        need_lse=need_lse,
        out=out,
        sink=operands.sink,
    )
    return attended


_OPERATORS = define_attending("sparse_mla", _Operands, _check, _run, lambda operands: operands.kv_lora_rank)
