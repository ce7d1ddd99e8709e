"""Entries made of several tokens' states."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import torch

from hal.common.contract.call_values import CompressedBatch, KVCache
from hal.common.contract.compressor import Compressor

from .cache_form import make_cache
from .calls import find_calls
from .operands import ANY, FLOATS, INT32, INT64, MATRIX, check_counts, check_operands, given, leading
from .registration import define_call, refuse_gradients


class _Operands(NamedTuple):
    kv: torch.Tensor
    score: torch.Tensor
    position_bias: torch.Tensor
    norm_weight: torch.Tensor | None
    eps: float
    cos: torch.Tensor | None
    sin: torch.Tensor | None
    states: torch.Tensor
    state_layout: str
    state_block_size: int
    entries: torch.Tensor
    entry_scale: torch.Tensor | None
    entry_layout: str
    entry_block_size: int
    state_slots: torch.Tensor
    entry_slots: torch.Tensor
    query_start_loc: torch.Tensor
    req_id: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    ratio: int
    backend: str | None


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


def _check(operands: _Operands) -> None:
    compressor = {name: getattr(operands, name) for name in ("score", "position_bias", "norm_weight", "cos", "sin")}
    stored = {"states": operands.states, "entries": operands.entries, "entry_scale": operands.entry_scale}
    tokens, requests = leading(operands.kv), leading(operands.block_table)
    check_operands(
        "compress_states",
        *given(**stored, **compressor),
        ("kv", operands.kv, FLOATS, MATRIX),
        ("state_slots", operands.state_slots, INT64, (tokens,)),
        ("entry_slots", operands.entry_slots, INT64, (tokens,)),
        ("query_start_loc", operands.query_start_loc, INT32, (ANY if requests is ANY else requests + 1,)),
        ("req_id", operands.req_id, INT32, (tokens,)),
        ("positions", operands.positions, INT64, (tokens,)),
        ("block_table", operands.block_table, INT32, (requests, ANY)),
    )
    check_counts("compress_states", 1, ratio=operands.ratio)
    refuse_gradients(operands.kv, *compressor.values(), *stored.values())


def _run(operands: _Operands) -> None:
    _check(operands)
    compressor = Compressor(**{each.name: getattr(operands, each.name) for each in fields(Compressor)})
    batch = CompressedBatch(**{each.name: getattr(operands, each.name) for each in fields(CompressedBatch)})
    find_calls(operands.backend, operands.states.device).compress_states(
        compressor,
        make_cache(operands.states, None, operands.state_layout, operands.state_block_size),
        make_cache(operands.entries, operands.entry_scale, operands.entry_layout, operands.entry_block_size),
        batch,
        ratio=operands.ratio,
    )


_COMPRESS = define_call("compress_states", _Operands, "()", _run, _check, mutated=("states", "entries"))
