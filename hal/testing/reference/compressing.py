"""Compressed entries: what one is made of, token by token."""

from __future__ import annotations

import torch

from hal.common.compressor import Compressor
from hal.common.kernels import KVCache

from .caches import read_parts, write_rows


def compress_states(
    compressor: Compressor,
    states: KVCache,
    entries: KVCache,
    state_slots: torch.Tensor,
    entry_slots: torch.Tensor,
    req_id: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    *,
    ratio: int,
) -> None:
    """Every token's state, then an entry for each token with a slot for one."""
    compressor.check(
        "compressor", len(positions), ratio, states.layout.widths[0] // entries.layout.widths[0], entries.layout.widths[0], None
    )
    bias = compressor.position_bias.double()[positions % ratio]
    write_rows(states, state_slots, (compressor.kv, compressor.score.double() + bias))
    for token, slot in enumerate(entry_slots.tolist()):
        if slot < 0:
            continue
        pages = block_table[int(req_id[token])].tolist()
        entry = _mix(states, pages, int(positions[token]), ratio, entries.layout.widths[0])
        if compressor.norm_weight is not None:
            entry = entry / (entry.square().mean() + compressor.eps).sqrt() * compressor.norm_weight.double()
        if compressor.cos is not None and compressor.sin is not None:
            entry = _rotate(entry, compressor.cos[token].double(), compressor.sin[token].double())
        write_rows(entries, entry_slots[token : token + 1], [part[None] for part in entry.split(entries.layout.widths)])


def _mix(states: KVCache, pages: list[int], position: int, ratio: int, width: int) -> torch.Tensor:
    """[width] in float64: of the group that ends at a position and, where states are twice as wide, of the one before it."""
    overlaps = states.layout.widths[0] == 2 * width
    values, scores = [], []
    for source in range(max(0, position + 1 - (2 if overlaps else 1) * ratio), position + 1):
        kv, score = read_parts(states, pages[source // states.block_size], source % states.block_size)
        is_own_group = source > position - ratio
        lanes = slice(width, 2 * width) if overlaps and is_own_group else slice(0, width)
        values.append(kv[lanes])
        scores.append(score[lanes])
    weights = torch.softmax(torch.stack(scores), dim=0)
    return (weights * torch.stack(values)).sum(dim=0)


def _rotate(entry: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The entry with each adjacent pair of its last lanes turned."""
    rotated = entry.clone()
    start = len(entry) - 2 * len(cos)
    for pair in range(len(cos)):
        x, y = entry[start + 2 * pair], entry[start + 2 * pair + 1]
        rotated[start + 2 * pair] = x * cos[pair] - y * sin[pair]
        rotated[start + 2 * pair + 1] = y * cos[pair] + x * sin[pair]
    return rotated
