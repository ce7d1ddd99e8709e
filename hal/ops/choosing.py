"""From scores to the keys that a query attends to: the best of them, the tokens of pools, and cache rows."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hal.common.contract.parallel import Parallel

from .calls import find_calls
from .operands import ANY, FLOATS, INT32, MATRIX, check_counts, check_operands, leading
from .registration import define_call
from .results import settle


class _Selected(NamedTuple):
    scores: torch.Tensor
    lengths: torch.Tensor
    k: int
    width: int
    deterministic: bool
    backend: str | None


class _Expanded(NamedTuple):
    topk: torch.Tensor
    lengths: torch.Tensor
    pool: int
    width: int
    distinct: bool
    backend: str | None


class _Found(NamedTuple):
    topk: torch.Tensor
    req_id: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    block_size: int
    rows_per_page: int | None
    share: list[int]
    distinct: bool
    backend: str | None


def select_topk(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    width: int,
    deterministic: bool = True,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    """int32 [tokens, width], as Backend.select_topk, by the operator."""
    chosen: torch.Tensor = _SELECT(scores, lengths, k, width, deterministic, backend)
    return chosen


def expand_pools(
    topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, *, distinct: bool = False, backend: str | None = None
) -> torch.Tensor:
    """int32 [tokens, width], as Backend.expand_pools, by the operator."""
    tokens: torch.Tensor = _EXPAND(topk, lengths, pool, width, distinct, backend)
    return tokens


def rows_from_topk(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    block_size: int,
    rows_per_page: int | None = None,
    parallel: Parallel,
    distinct: bool = False,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows int32 [tokens, width] and their count int32 [tokens], as Backend.rows_from_topk, by the operator."""
    share = [parallel.dcp, parallel.dcp_rank, parallel.interleave]
    found: tuple[torch.Tensor, torch.Tensor] = _ROWS(
        topk, req_id, block_table, seq_lens, block_size, rows_per_page, share, distinct, backend
    )
    return found


def _check_select(operands: _Selected) -> None:
    scores = operands.scores
    check_operands("select_topk", ("scores", scores, FLOATS, MATRIX), ("lengths", operands.lengths, INT32, (leading(scores),)))
    check_counts("select_topk", 0, k=operands.k, width=operands.width)


def _run_select(operands: _Selected) -> torch.Tensor:
    _check_select(operands)
    scores, calls = operands.scores, find_calls(operands.backend, operands.scores.device)
    chosen = calls.select_topk(scores, operands.lengths, operands.k, operands.width, operands.deterministic)
    return settle(chosen, torch.int32, scores)


def _trace_select(operands: _Selected) -> torch.Tensor:
    _check_select(operands)
    return operands.scores.new_empty((operands.scores.shape[0], operands.width), dtype=torch.int32)


def _check_expand(operands: _Expanded) -> None:
    topk = operands.topk
    check_operands("expand_pools", ("topk", topk, INT32, MATRIX), ("lengths", operands.lengths, INT32, (leading(topk),)))
    check_counts("expand_pools", 1, pool=operands.pool)


def _run_expand(operands: _Expanded) -> torch.Tensor:
    _check_expand(operands)
    topk, calls = operands.topk, find_calls(operands.backend, operands.topk.device)
    tokens = calls.expand_pools(topk, operands.lengths, operands.pool, operands.width, distinct=operands.distinct)
    return settle(tokens, torch.int32, topk)


def _trace_expand(operands: _Expanded) -> torch.Tensor:
    _check_expand(operands)
    return operands.topk.new_empty((operands.topk.shape[0], operands.width), dtype=torch.int32)


def _check_rows(operands: _Found) -> None:
    topk, requests = operands.topk, leading(operands.seq_lens)
    check_operands(
        "rows_from_topk",
        ("topk", topk, INT32, MATRIX),
        ("req_id", operands.req_id, INT32, (leading(topk),)),
        ("block_table", operands.block_table, INT32, (requests, ANY)),
        ("seq_lens", operands.seq_lens, INT32, (requests,)),
    )
    check_counts("rows_from_topk", 1, block_size=operands.block_size)
    if operands.rows_per_page is not None:
        check_counts("rows_from_topk", operands.block_size, rows_per_page=operands.rows_per_page)


def _run_rows(operands: _Found) -> tuple[torch.Tensor, torch.Tensor]:
    _check_rows(operands)
    topk, (dcp, dcp_rank, interleave) = operands.topk, operands.share
    rows, valid = find_calls(operands.backend, topk.device).rows_from_topk(
        topk,
        operands.req_id,
        operands.block_table,
        operands.seq_lens,
        block_size=operands.block_size,
        rows_per_page=operands.rows_per_page,
        parallel=Parallel(dcp=dcp, dcp_rank=dcp_rank, interleave=interleave),
        distinct=operands.distinct,
    )
    return settle(rows, torch.int32, topk), settle(valid, torch.int32)


def _trace_rows(operands: _Found) -> tuple[torch.Tensor, torch.Tensor]:
    _check_rows(operands)
    topk = operands.topk
    return topk.new_empty(topk.shape, dtype=torch.int32), topk.new_empty((topk.shape[0],), dtype=torch.int32)


_SELECT = define_call("select_topk", _Selected, "Tensor", _run_select, _trace_select)
_EXPAND = define_call("expand_pools", _Expanded, "Tensor", _run_expand, _trace_expand)
_ROWS = define_call("rows_from_topk", _Found, "(Tensor, Tensor)", _run_rows, _trace_rows)
