"""Attention over contiguous keys."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import VarlenBatch
from hal.common.contract.masking import CAUSAL, Masking

from .attending import Attended, define_attending
from .calls import find_calls
from .operands import ANY, CUBE, FLOATS, INT32, check_masking, check_operands, leading
from .registration import refuse_gradients


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    *,
    softmax_scale: float,
    masking: Masking = CAUSAL,
    need_lse: bool = False,
    out: torch.Tensor | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, v_head_dim] and lse [tokens, heads] or None, as Backend.varlen_attention, by the operator."""
    arguments = (
        q,
        k,
        v,
        batch.q_start_loc,
        batch.k_start_loc,
        batch.max_query_len,
        batch.max_seq_len,
        softmax_scale,
        masking.window,
        masking.chunk,
        masking.softcap,
        masking.causal,
        batch.selected,
        batch.first_key,
        backend,
    )
    return _OPERATORS.attend(arguments, need_lse, out)


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_start_loc: torch.Tensor,
    k_start_loc: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    softmax_scale: float,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    causal: bool,
    selected: torch.Tensor | None,
    first_key: torch.Tensor | None,
    backend: str | None,
) -> None:
    ends = leading(q_start_loc)
    requests = ANY if ends is ANY else ends - 1
    check_operands(
        "varlen_attention",
        ("q", q, FLOATS, CUBE),
        ("k", k, FLOATS, CUBE),
        ("v", v, FLOATS, CUBE),
        ("q_start_loc", q_start_loc, INT32, (ends,)),
        ("k_start_loc", k_start_loc, INT32, (ends,)),
        *(() if selected is None else (("selected", selected, INT32, (leading(q), ANY)),)),
        *(() if first_key is None else (("first_key", first_key, INT32, (requests,)),)),
    )
    check_masking("varlen_attention", window, chunk, softcap)
    refuse_gradients(q, k, v)


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_start_loc: torch.Tensor,
    k_start_loc: torch.Tensor,
    max_query_len: int,
    max_seq_len: int,
    softmax_scale: float,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    causal: bool,
    selected: torch.Tensor | None,
    first_key: torch.Tensor | None,
    backend: str | None,
    *,
    need_lse: bool,
    out: torch.Tensor | None,
) -> Attended:
    return find_calls(backend, q.device).varlen_attention(
        q,
        k,
        v,
        VarlenBatch(
            q_start_loc=q_start_loc,
            k_start_loc=k_start_loc,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            selected=selected,
            first_key=first_key,
        ),
        softmax_scale=softmax_scale,
        masking=Masking(causal=causal, window=window, chunk=chunk, softcap=softcap),
        need_lse=need_lse,
        out=out,
    )


def _value_width(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: object) -> int:
    return v.shape[2]


_OPERATORS = define_attending(
    "varlen_attention",
    "Tensor q, Tensor k, Tensor v, Tensor q_start_loc, Tensor k_start_loc, SymInt max_query_len, SymInt max_seq_len, "
    "float softmax_scale, SymInt? window, SymInt? chunk, float? softcap, bool causal, Tensor? selected, Tensor? first_key, "
    "str? backend",
    _check,
    _run,
    _value_width,
)
