"""From scores to the keys that a query attends to: the best of them, the tokens of pools, and cache rows."""

from __future__ import annotations

import torch

from hal.common.contract.parallel import Parallel

from .calls import find_calls
from .operands import ANY, FLOATS, INT32, MATRIX, check_counts, check_operands, leading
from .registration import define_operator
from .results import settle


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


def _check_select(scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int) -> None:
    check_operands("select_topk", ("scores", scores, FLOATS, MATRIX), ("lengths", lengths, INT32, (leading(scores),)))
    check_counts("select_topk", 0, k=k, width=width)


def _check_expand(topk: torch.Tensor, lengths: torch.Tensor, pool: int) -> None:
    check_operands("expand_pools", ("topk", topk, INT32, MATRIX), ("lengths", lengths, INT32, (leading(topk),)))
    check_counts("expand_pools", 1, pool=pool)


def _check_rows(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    rows_per_page: int | None,
) -> None:
    requests = leading(seq_lens)
    check_operands(
        "rows_from_topk",
        ("topk", topk, INT32, MATRIX),
        ("req_id", req_id, INT32, (leading(topk),)),
        ("block_table", block_table, INT32, (requests, ANY)),
        ("seq_lens", seq_lens, INT32, (requests,)),
    )
    check_counts("rows_from_topk", 1, block_size=block_size)
    if rows_per_page is not None:
        check_counts("rows_from_topk", block_size, rows_per_page=rows_per_page)


def _run_select(
    scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int, deterministic: bool, backend: str | None
) -> torch.Tensor:
    _check_select(scores, lengths, k, width)
    calls = find_calls(backend, scores.device)
    return settle(calls.select_topk(scores, lengths, k, width, deterministic), torch.int32, scores)


def _trace_select(
    scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int, deterministic: bool, backend: str | None
) -> torch.Tensor:
    _check_select(scores, lengths, k, width)
    return scores.new_empty((scores.shape[0], width), dtype=torch.int32)


def _run_expand(
    topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, distinct: bool, backend: str | None
) -> torch.Tensor:
    _check_expand(topk, lengths, pool)
    tokens = find_calls(backend, topk.device).expand_pools(topk, lengths, pool, width, distinct=distinct)
    return settle(tokens, torch.int32, topk)


def _trace_expand(
    topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, distinct: bool, backend: str | None
) -> torch.Tensor:
    _check_expand(topk, lengths, pool)
    return topk.new_empty((topk.shape[0], width), dtype=torch.int32)


def _run_rows(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    rows_per_page: int | None,
    share: list[int],
    distinct: bool,
    backend: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_rows(topk, req_id, block_table, seq_lens, block_size, rows_per_page)
    dcp, dcp_rank, interleave = share
    rows, valid = find_calls(backend, topk.device).rows_from_topk(
        topk,
        req_id,
        block_table,
        seq_lens,
        block_size=block_size,
        rows_per_page=rows_per_page,
        parallel=Parallel(dcp=dcp, dcp_rank=dcp_rank, interleave=interleave),
        distinct=distinct,
    )
    return settle(rows, torch.int32, topk), settle(valid, torch.int32)


def _trace_rows(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    rows_per_page: int | None,
    share: list[int],
    distinct: bool,
    backend: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_rows(topk, req_id, block_table, seq_lens, block_size, rows_per_page)
    return topk.new_empty(topk.shape, dtype=torch.int32), topk.new_empty((topk.shape[0],), dtype=torch.int32)


_SELECT = define_operator(
    "select_topk",
    "(Tensor scores, Tensor lengths, SymInt k, SymInt width, bool deterministic, str? backend) -> Tensor",
    _run_select,
    _trace_select,
)
_EXPAND = define_operator(
    "expand_pools",
    "(Tensor topk, Tensor lengths, SymInt pool, SymInt width, bool distinct, str? backend) -> Tensor",
    _run_expand,
    _trace_expand,
)
_ROWS = define_operator(
    "rows_from_topk",
    "(Tensor topk, Tensor req_id, Tensor block_table, Tensor seq_lens, SymInt block_size, SymInt? rows_per_page, "
    "SymInt[] share, bool distinct, str? backend) -> (Tensor, Tensor)",
    _run_rows,
    _trace_rows,
)
