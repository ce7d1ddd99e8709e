"""Attention over contiguous keys."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hal.common.contract.call_values import VarlenBatch
from hal.common.contract.masking import CAUSAL, Masking

from .attending import Attended, define_attending
from .calls import find_calls
from .operands import ANY, CUBE, FLOATS, INT32, check_masking, check_operands, leading
from .registration import refuse_gradients


class _Operands(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_start_loc: torch.Tensor
    k_start_loc: torch.Tensor
    max_query_len: int
    max_seq_len: int
    softmax_scale: float
    window: int | None
    chunk: int | None
    softcap: float | None
    causal: bool
    selected: torch.Tensor | None
    first_key: torch.Tensor | None
    backend: str | None


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
    where = (batch.q_start_loc, batch.k_start_loc, batch.max_query_len, batch.max_seq_len)
    rule = (masking.window, masking.chunk, masking.softcap, masking.causal)
    arguments = (q, k, v, *where, softmax_scale, *rule, batch.selected, batch.first_key, backend)
    return _OPERATORS.attend(arguments, need_lse, out)


def _check(operands: _Operands) -> None:
    q, k, v, selected, first_key = operands.q, operands.k, operands.v, operands.selected, operands.first_key
    ends = leading(operands.q_start_loc)
    requests = ANY if ends is ANY else ends - 1
    check_operands(
        "varlen_attention",
        ("q", q, FLOATS, CUBE),
        ("k", k, FLOATS, CUBE),
        ("v", v, FLOATS, CUBE),
        ("q_start_loc", operands.q_start_loc, INT32, (ends,)),
        ("k_start_loc", operands.k_start_loc, INT32, (ends,)),
        *(() if selected is None else (("selected", selected, INT32, (leading(q), ANY)),)),
        *(() if first_key is None else (("first_key", first_key, INT32, (requests,)),)),
    )
    check_masking("varlen_attention", operands.window, operands.chunk, operands.softcap)
    refuse_gradients(q, k, v)


def _run(operands: _Operands, need_lse: bool, out: torch.Tensor | None) -> Attended:
    return find_calls(operands.backend, operands.q.device).varlen_attention(
        operands.q,
        operands.k,
        operands.v,
        VarlenBatch(
            q_start_loc=operands.q_start_loc,
            k_start_loc=operands.k_start_loc,
            max_query_len=operands.max_query_len,
            max_seq_len=operands.max_seq_len,
            selected=operands.selected,
            first_key=operands.first_key,
        ),
        softmax_scale=operands.softmax_scale,
        masking=Masking(causal=operands.causal, window=operands.window, chunk=operands.chunk, softcap=operands.softcap),
        need_lse=need_lse,
        out=out,
    )


_OPERATORS = define_attending("varlen_attention", _Operands, _check, _run, lambda operands: operands.v.shape[2])
