"""Attention over a paged cache."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.masking import CAUSAL, Masking

from .attending import Attended, define_attending
from .batch_form import batch_operands, flatten_batch, read_batch
from .cache_form import flatten_cache, read_cache, value_width
from .calls import find_sinking
from .operands import CUBE, FLOATS, check_masking, check_operands, given, leading, sink_operands
from .registration import refuse_gradients


class _Operands(NamedTuple):
    q: torch.Tensor
    storage: torch.Tensor
    scale: torch.Tensor | None
    layout: str
    block_size: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    max_seq_len: int
    num_decodes: int
    key_starts: torch.Tensor | None
    key_stops: torch.Tensor | None
    softmax_scale: float
    window: int | None
    chunk: int | None
    softcap: float | None
    causal: bool
    sink: torch.Tensor | None
    backend: str | None


def paged_attention(
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    *,
    softmax_scale: float,
    masking: Masking = CAUSAL,
    need_lse: bool = False,
    out: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, v_head_dim] and lse [tokens, heads] or None, as Backend.paged_attention, by the operator."""
    rule = (masking.window, masking.chunk, masking.softcap, masking.causal)
    arguments = (q, *flatten_cache(cache), *flatten_batch(batch), softmax_scale, *rule, sink, backend)
    return _OPERATORS.attend(arguments, need_lse, out)


def _check(operands: _Operands) -> None:
    q, storage, scale, sink = operands.q, operands.storage, operands.scale, operands.sink
    check_operands(
        "paged_attention",
        ("q", q, FLOATS, CUBE),
        *given(storage=storage, scale=scale),
        *batch_operands(leading(q), operands),
        *sink_operands(q, sink),
    )
    check_masking("paged_attention", operands.window, operands.chunk, operands.softcap)
    refuse_gradients(q, storage, scale, sink)


def _run(operands: _Operands, need_lse: bool, out: torch.Tensor | None) -> Attended:
    attended: Attended = find_sinking(operands.backend, operands.q.device, "paged_attention")(
        operands.q,
        read_cache(operands),
        read_batch(operands),
        softmax_scale=operands.softmax_scale,
        masking=Masking(causal=operands.causal, window=operands.window, chunk=operands.chunk, softcap=operands.softcap),
        need_lse=need_lse,
        out=out,
        sink=operands.sink,
    )
    return attended


_OPERATORS = define_attending("paged_attention", _Operands, _check, _run, lambda operands: value_width(operands.layout))
