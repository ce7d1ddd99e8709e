"""Compressed entries: a softmax over a group of tokens, channel by channel, normalised and rotated."""

from __future__ import annotations

import torch

from hal.common.compressor import Compressor
from hal.common.errors import LayoutError
from hal.common.kernels import KVCache

from .cache import write_rows

# Bytes of gathered states worked on at once.
_GATHER_BYTES = 16 << 20


def compress_states(
    compressor: Compressor,
    states: KVCache,
    entries: KVCache,
    state_slots: torch.Tensor,
    entry_slots: torch.Tensor,
    req_id: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    ratio: int,
) -> None:
    """Write every token's state, then an entry for every token that has a slot for one."""
    width = entries.layout.widths[0]
    groups = _check(compressor, states, width, ratio, (state_slots, entry_slots, req_id, positions))
    if not positions.numel():
        return
    dtype = states.rows.dtype
    score = compressor.score.to(dtype) + compressor.position_bias.to(dtype)[positions % ratio]
    write_rows(states, state_slots, (compressor.kv.to(dtype), score))
    closing = (entry_slots >= 0).nonzero().squeeze(1)
    span = groups * ratio
    step = max(1, _GATHER_BYTES // (span * states.layout.bytes_per_token))
    for tokens in closing.split(step):
        rows = _locate(states, block_table, req_id[tokens].long(), positions[tokens], span)
        entry = _mix(states.rows, rows, groups, width)
        if compressor.norm_weight is not None:
            scale = torch.rsqrt(entry.square().mean(dim=1, keepdim=True) + compressor.eps)
            entry = entry * scale * compressor.norm_weight.to(dtype)
        if compressor.cos is not None and compressor.sin is not None:
            _rotate(entry, compressor.cos[tokens].to(dtype), compressor.sin[tokens].to(dtype))
        write_rows(entries, entry_slots[tokens], entry.split(entries.layout.widths, dim=1))


def _check(compressor: Compressor, states: KVCache, width: int, ratio: int, per_token: tuple[torch.Tensor, ...]) -> int:
    """How many groups an entry is made of; LayoutError where states, entries and the compressor do not fit each other."""
    wide = states.layout.widths[0]
    groups = wide // max(1, width)
    if states.layout.name != "state" or groups not in (1, 2) or groups * width != wide:
        raise LayoutError(
            f"states of layout {states.layout.name!r} hold {wide} values per token; entries of {width} need a 'state' layout of "
            f"{width}, or of {2 * width} where groups overlap"
        )
    tokens = compressor.kv.shape[0]
    compressor.check("compressor", tokens, ratio, groups, width, None)
    counts = [tensor.shape[0] for tensor in per_token]
    if set(counts) != {tokens}:
        raise LayoutError(f"slots, requests and positions of {counts} tokens; the compressor has {tokens}")
    return groups


def _locate(
    states: KVCache, block_table: torch.Tensor, request: torch.Tensor, positions: torch.Tensor, span: int
) -> torch.Tensor:
    """Cache rows int64 [tokens, span] of the span positions that end at each token's; -1 before a request's first."""
    wanted = positions[:, None] + torch.arange(1 - span, 1)
    block = block_table[request[:, None], (wanted // states.block_size).clamp(min=0)].long()
    rows = block * states.page_stride + wanted % states.block_size
    return torch.where((wanted >= 0) & (block >= 0), rows, -1)


def _mix(cached: torch.Tensor, rows: torch.Tensor, groups: int, width: int) -> torch.Tensor:
    """Softmax-weighted values [tokens, width]; of overlapping groups the older gives its first half, the newer its second."""
    count, span = rows.shape
    absent = rows < 0
    gathered = cached.index_select(0, rows.clamp(min=0).reshape(-1)).view(count, span, 2, groups, width)
    if groups == 2:
        half = span // 2
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
