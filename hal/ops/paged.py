"""Attention over a paged cache."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.masking import CAUSAL, Masking

from .attending import Attended, define_attending
from .batch_form import BATCH, batch_operands, flatten_batch, read_batch
from .cache_form import CACHE, read_cache, value_width
from .calls import find_sinking
from .operands import CUBE, FLOATS, check_masking, check_operands, given, leading, sink_operands
from .registration import refuse_gradients


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
    arguments = (
        q,
        cache.storage,
        cache.scale,
        cache.layout.description,
        cache.block_size,
        *flatten_batch(batch),
        softmax_scale,
        masking.window,
        masking.chunk,
        masking.softcap,
        masking.causal,
        sink,
        backend,
    )
    return _OPERATORS.attend(arguments, need_lse, out)


def _check(
    q: torch.Tensor,
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    block_size: int,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    num_decodes: int,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
    softmax_scale: float,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    causal: bool,
    sink: torch.Tensor | None,
    *rest: object,
) -> None:
    batch = batch_operands(leading(q), query_start_loc, seq_lens, block_table, key_starts, key_stops)
    check_operands(
        "paged_attention", ("q", q, FLOATS, CUBE), *given(storage=storage, scale=scale), *batch, *sink_operands(q, sink)
    )
    check_masking("paged_attention", window, chunk, softcap)
    refuse_gradients(q, storage, scale, sink)


def _run(
    q: torch.Tensor,
    storage: torch.Tensor,
    scale: torch.Tensor | None,
    layout: str,
    block_size: int,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    num_decodes: int,
    key_starts: torch.Tensor | None,
    key_stops: torch.Tensor | None,
    softmax_scale: float,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    causal: bool,
    sink: torch.Tensor | None,
    backend: str | None,
    *,
    need_lse: bool,
    out: torch.Tensor | None,
) -> Attended:
    attended: Attended = find_sinking(backend, q.device, "paged_attention")(
        q,
        read_cache(storage, scale, layout, block_size),
        read_batch(query_start_loc, seq_lens, block_table, max_query_len, max_seq_len, num_decodes, key_starts, key_stops),
        softmax_scale=softmax_scale,
        masking=Masking(causal=causal, window=window, chunk=chunk, softcap=softcap),
        need_lse=need_lse,
        out=out,
        sink=sink,
    )
    return attended


def _value_width(q: torch.Tensor, storage: torch.Tensor, scale: torch.Tensor | None, layout: str, *rest: object) -> int:
    return value_width(layout)


_OPERATORS = define_attending(
    "paged_attention",
    f"Tensor q, {CACHE}, {BATCH}, float softmax_scale, SymInt? window, "
    "SymInt? chunk, float? softcap, bool causal, Tensor? sink, str? backend",
    _check,
    _run,
    _value_width,
)
