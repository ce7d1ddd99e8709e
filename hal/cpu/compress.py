"""Compressed entries: a softmax over a group of tokens, channel by channel, normalised and rotated."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import CompressedBatch, KVCache
from hal.common.contract.compressor import Compressor, check_states

from .cache import write_rows

# Bytes of gathered states worked on at once.
_GATHER_BYTES = 16 << 20


def compress_states(
    compressor: Compressor,
    states: KVCache,
    entries: KVCache,
    batch: CompressedBatch,
    ratio: int,
) -> None:
    """Write an entry for every token that has a slot for one, and the states that have a slot."""
    width = entries.layout.widths[0]
    groups = check_states(compressor, states, entries, batch, ratio)
    positions, entry_slots = batch.positions, batch.entry_slots
    if not positions.numel():
        return
    dtype = states.rows.dtype
    score = compressor.score.to(dtype) + compressor.position_bias.to(dtype)[positions % ratio]
    own = compressor.kv.to(dtype), score
    closing = (entry_slots >= 0).nonzero().squeeze(1)
    span = groups * ratio
    step = max(1, _GATHER_BYTES // (span * states.layout.bytes_per_token))
    pieces = closing.split(step) if closing.numel() else ()
    made = []
    for tokens in pieces:
        request, wanted = batch.req_id[tokens].long(), positions[tokens][:, None] + torch.arange(1 - span, 1)
        # A request's new tokens lie end to end, so a position is as far from the token as it is in time.
        index = tokens[:, None] + torch.arange(1 - span, 1)
        index = torch.where(index >= batch.query_start_loc[request][:, None], index, -1)
        rows = _locate(states, batch.block_table, request, torch.where(index < 0, wanted, -1), entries.block_size * ratio)
        entry = _mix(_gather(states, rows, own, index), (rows < 0) & (index < 0), groups, width)
        if compressor.norm_weight is not None:
            scale = torch.rsqrt(entry.square().mean(dim=1, keepdim=True) + compressor.eps)
            entry = entry * scale * compressor.norm_weight.to(dtype)
        if compressor.cos is not None and compressor.sin is not None:
            _rotate(entry, compressor.cos[tokens].to(dtype), compressor.sin[tokens].to(dtype))
        made.append(entry)
    # States last: a new one may lie where an earlier one was read.
    write_rows(states, batch.state_slots, own)
    for tokens, entry in zip(pieces, made, strict=True):
        write_rows(entries, entry_slots[tokens], entry.split(entries.layout.widths, dim=1))


def _locate(states: KVCache, block_table: torch.Tensor, request: torch.Tensor, wanted: torch.Tensor, page: int) -> torch.Tensor:
    """Cache rows int64 [tokens, span] of positions; -1 for a negative one, and where the table names no page of the cache."""
    columns = block_table.shape[1]
    if not columns:
        return torch.full_like(wanted, -1)
    column = wanted // page
    block = block_table[request[:, None], column.clamp(min=0, max=columns - 1)].long()
    is_there = (wanted >= 0) & (column < columns) & (block >= 0) & (block < states.num_pages)
    return torch.where(is_there, block * states.page_stride + wanted % page % states.block_size, -1)


def _gather(states: KVCache, rows: torch.Tensor, own: tuple[torch.Tensor, torch.Tensor], index: torch.Tensor) -> torch.Tensor:
    """States [tokens, span, 2 * width] from the step's own tokens where an index names one, else from cache rows."""
    cached = states.rows.index_select(0, rows.clamp(min=0).reshape(-1)).unflatten(0, rows.shape)
    flat = index.clamp(min=0).reshape(-1)
    new = torch.cat([part.index_select(0, flat) for part in own], dim=1).unflatten(0, rows.shape)
    return torch.where((index >= 0)[..., None], new, cached)


def _mix(gathered: torch.Tensor, absent: torch.Tensor, groups: int, width: int) -> torch.Tensor:
    """Softmax-weighted values [tokens, width]; of overlapping groups the older gives its first half, the newer its second."""
    gathered = gathered.unflatten(2, (2, groups, width))
    if groups == 2:
        half = gathered.shape[1] // 2
        gathered = torch.cat([gathered[:, :half, :, 0], gathered[:, half:, :, 1]], dim=1)
    else:
        gathered = gathered[:, :, :, 0]
    values, scores = gathered.unbind(dim=2)
    if bool(absent.any()):
        # An absent state still meets its weight of zero, so its values must be finite.
        values = values.masked_fill(absent[..., None], 0)
        scores = scores.masked_fill(absent[..., None], float("-inf"))
    return (torch.softmax(scores, dim=1) * values).sum(dim=1)


def _rotate(entry: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate adjacent pairs of the last lanes, in place."""
    lanes = entry[:, entry.shape[1] - 2 * cos.shape[1] :]
    first, second = lanes[:, 0::2].clone(), lanes[:, 1::2].clone()
    lanes[:, 0::2] = first * cos - second * sin
    lanes[:, 1::2] = second * cos + first * sin
