"""MLA over chosen cache rows, several lists of them under one softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import Segment

from .attending import Attended, define_attending
from .cache_form import read_cache
from .calls import find_sinking
from .operands import ANY, CUBE, FLOATS, INT32, check_operands, leading, sink_operands
from .registration import refuse_gradients


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


def _check(
    q: torch.Tensor,
    storages: list[torch.Tensor],
    scales: list[torch.Tensor | None],
    layouts: list[str],
    block_sizes: list[int],
    rows: list[torch.Tensor],
    valid: list[torch.Tensor],
    kv_lora_rank: int,
    softmax_scale: float,
    sink: torch.Tensor | None,
    *rest: object,
) -> None:
    tokens = leading(q)
    check_operands(
        "sparse_mla",
        ("q", q, FLOATS, CUBE),
        *((f"storage of segment {i}", each, None, None) for i, each in enumerate(storages)),
        *((f"scale of segment {i}", each, None, None) for i, each in enumerate(scales) if each is not None),
        *((f"rows of segment {i}", each, INT32, (tokens, ANY)) for i, each in enumerate(rows)),
        *((f"valid of segment {i}", each, INT32, (tokens,)) for i, each in enumerate(valid)),
        *sink_operands(q, sink),
    )
    refuse_gradients(q, storages, scales, sink)


def _run(
    q: torch.Tensor,
    storages: list[torch.Tensor],
    scales: list[torch.Tensor | None],
    layouts: list[str],
    block_sizes: list[int],
    rows: list[torch.Tensor],
    valid: list[torch.Tensor],
    kv_lora_rank: int,
    softmax_scale: float,
    sink: torch.Tensor | None,
    backend: str | None,
    *,
    need_lse: bool,
    out: torch.Tensor | None,
) -> Attended:
    caches = [read_cache(*cache) for cache in zip(storages, scales, layouts, block_sizes, strict=True)]
    attended: Attended = find_sinking(backend, q.device, "sparse_mla")(
        q,
        [Segment(*segment) for segment in zip(caches, rows, valid, strict=True)],
        kv_lora_rank=kv_lora_rank,
        softmax_scale=softmax_scale,
        need_lse=need_lse,
        out=out,
        sink=sink,
    )
    return attended


def _value_width(
    q: torch.Tensor,
    storages: list[torch.Tensor],
    scales: list[torch.Tensor | None],
    layouts: list[str],
    block_sizes: list[int],
    rows: list[torch.Tensor],
    valid: list[torch.Tensor],
    kv_lora_rank: int,
    *rest: object,
) -> int:
    return kv_lora_rank


_OPERATORS = define_attending(
    "sparse_mla",
    "Tensor q, Tensor[] storages, Tensor?[] scales, str[] layouts, SymInt[] block_sizes, Tensor[] rows, Tensor[] valid, "
    "SymInt kv_lora_rank, float softmax_scale, Tensor? sink, str? backend",
    _check,
    _run,
    _value_width,
)
