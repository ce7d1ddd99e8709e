"""Entries made of several tokens' states."""

from __future__ import annotations

from typing import Any

import torch

from hal.common.contract.call_values import CompressedBatch, KVCache
from hal.common.contract.compressor import Compressor

from .cache_form import read_cache
from .calls import find_calls
from .operands import ANY, FLOATS, INT32, INT64, MATRIX, check_counts, check_operands, given, leading
from .registration import define_operator, refuse_gradients


def compress_states(
    compressor: Compressor,
    states: KVCache,
    entries: KVCache,
    batch: CompressedBatch,
    *,
    ratio: int,
    backend: str | None = None,
) -> None:
    """Write states, and the entries that close, as Backend.compress_states, by the operator; both storages are mutated."""
    _COMPRESS(
        compressor.kv,
        compressor.score,
        compressor.position_bias,
        compressor.norm_weight,
        compressor.eps,
        compressor.cos,
        compressor.sin,
        states.storage,
        states.layout.description,
        states.block_size,
        entries.storage,
        entries.scale,
        entries.layout.description,
        entries.block_size,
        batch.state_slots,
        batch.entry_slots,
        batch.query_start_loc,
        batch.req_id,
        batch.positions,
        batch.block_table,
        ratio,
        backend,
    )


def _check(
    kv: torch.Tensor,
    score: torch.Tensor,
    position_bias: torch.Tensor,
    norm_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    states: torch.Tensor,
    state_layout: str,
    state_block_size: int,
    entries: torch.Tensor,
    entry_scale: torch.Tensor | None,
    entry_layout: str,
    entry_block_size: int,
    state_slots: torch.Tensor,
    entry_slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    req_id: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
    backend: str | None,
) -> None:
    tokens, requests = leading(kv), leading(block_table)
    check_operands(
        "compress_states",
        *given(
            states=states,
            entries=entries,
            score=score,
            position_bias=position_bias,
            norm_weight=norm_weight,
            cos=cos,
            sin=sin,
            entry_scale=entry_scale,
        ),
        ("kv", kv, FLOATS, MATRIX),
        ("state_slots", state_slots, INT64, (tokens,)),
        ("entry_slots", entry_slots, INT64, (tokens,)),
        ("query_start_loc", query_start_loc, INT32, (ANY if requests is ANY else requests + 1,)),
        ("req_id", req_id, INT32, (tokens,)),
        ("positions", positions, INT64, (tokens,)),
        ("block_table", block_table, INT32, (requests, ANY)),
    )
    check_counts("compress_states", 1, ratio=ratio)
    refuse_gradients(kv, score, position_bias, norm_weight, cos, sin, states, entries, entry_scale)


def _compress(
    kv: torch.Tensor,
    score: torch.Tensor,
    position_bias: torch.Tensor,
    norm_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    states: torch.Tensor,
    state_layout: str,
    state_block_size: int,
    entries: torch.Tensor,
    entry_scale: torch.Tensor | None,
    entry_layout: str,
    entry_block_size: int,
    state_slots: torch.Tensor,
    entry_slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    req_id: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
    backend: str | None,
) -> None:
    compressor = Compressor(kv=kv, score=score, position_bias=position_bias, norm_weight=norm_weight, eps=eps, cos=cos, sin=sin)
    find_calls(backend, states.device).compress_states(
        compressor,
        read_cache(states, None, state_layout, state_block_size),
        read_cache(entries, entry_scale, entry_layout, entry_block_size),
        CompressedBatch(
            state_slots=state_slots,
            entry_slots=entry_slots,
            query_start_loc=query_start_loc,
            req_id=req_id,
            positions=positions,
            block_table=block_table,
        ),
        ratio=ratio,
    )


def _run(*arguments: Any) -> None:
    _check(*arguments)
    _compress(*arguments)


_COMPRESS = define_operator(
    "compress_states",
    "(Tensor kv, Tensor score, Tensor position_bias, Tensor? norm_weight, float eps, Tensor? cos, Tensor? sin, "
    "Tensor(a!) states, str state_layout, SymInt state_block_size, "
    "Tensor(b!) entries, Tensor? entry_scale, str entry_layout, SymInt entry_block_size, "
    "Tensor state_slots, Tensor entry_slots, Tensor query_start_loc, Tensor req_id, Tensor positions, Tensor block_table, "
    "SymInt ratio, str? backend) -> ()",
    _run,
    _check,
)
