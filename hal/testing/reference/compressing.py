"""Compressed entries: what one is made of, token by token."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import CompressedBatch, KVCache
from hal.common.contract.compressor import Compressor

from .caches import read_parts, write_rows


def compress_states(
    compressor: Compressor,
    states: KVCache,
    entries: KVCache,
    batch: CompressedBatch,
    *,
    ratio: int,
) -> None:
    """An entry for each token with a slot for one, and the states that have a slot."""
    width, wide = entries.layout.widths[0], states.layout.widths[0]
    positions, entry_slots = batch.positions, batch.entry_slots
    compressor.check("compressor", len(positions), ratio, wide // width, width, None, states.storage.device)
    scores = compressor.score.double() + compressor.position_bias.double()[positions % ratio]
    own = compressor.kv.double(), scores
    made = []
    for token, slot in enumerate(entry_slots.tolist()):
        if slot < 0:
            continue
        request, position = int(batch.req_id[token]), int(positions[token])
        first = position - (token - int(batch.query_start_loc[request]))
        pages, page = batch.block_table[request].tolist(), entries.block_size * ratio
        history = []
        for source in range(max(0, position + 1 - wide // width * ratio), position + 1):
            if source >= first:
                history.append(tuple(part[token - (position - source)] for part in own))
            else:
                history.append(read_parts(states, pages[source // page], source % page % states.block_size))
        entry = _mix(history, ratio, width)
        if compressor.norm_weight is not None:
            entry = entry / (entry.square().mean() + compressor.eps).sqrt() * compressor.norm_weight.double()
        if compressor.cos is not None and compressor.sin is not None:
            entry = _rotate(entry, compressor.cos[token].double(), compressor.sin[token].double())
        made.append((token, entry))
    write_rows(states, batch.state_slots, own)
    for token, entry in made:
        write_rows(entries, entry_slots[token : token + 1], [part[None] for part in entry.split(entries.layout.widths)])


def _mix(history: list[tuple[torch.Tensor, ...]], ratio: int, width: int) -> torch.Tensor:
    """[width] in float64: of the last ratio states and, where they are twice as wide, of those of the group before."""
    overlaps = history[-1][0].shape[0] == 2 * width
    values, scores = [], []
    for age, (kv, score) in enumerate(reversed(history)):
        lanes = slice(width, 2 * width) if overlaps and age < ratio else slice(0, width)
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
