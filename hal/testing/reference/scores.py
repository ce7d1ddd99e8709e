"""The lightning indexer's scores."""

from __future__ import annotations

import math

import torch

from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch

from .caches import read_request


def index_scores(
    iq: torch.Tensor,
    weights: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    chunk: IndexerChunk | None = None,
) -> torch.Tensor:
    """Scores [chunk tokens, keys]: sum over heads of weight * relu(q . k) for each key up to the token itself, else -inf.

    Where the batch has key ranges, they say which keys.
    """
    first, stop = (0, iq.shape[0]) if chunk is None else (chunk.token_start, chunk.token_stop)
    width = batch.max_seq_len if chunk is None else chunk.max_seq_len
    scores = torch.full((stop - first, width), -math.inf).double()
    starts = batch.query_start_loc.tolist()
    tables = batch.block_table.tolist()
    for request, seq_len in enumerate(batch.seq_lens.tolist()):
        (keys,) = read_request(cache, tables[request], seq_len)
        for token in range(max(starts[request], first), min(starts[request + 1], stop)):
            seen = slice(0, max(seq_len - (starts[request + 1] - token) + 1, 0))
            if batch.key_stops is not None:
                start = 0 if batch.key_starts is None else int(batch.key_starts[token])
                seen = slice(start, int(batch.key_stops[token]))
            products = torch.relu(iq[token].double() @ keys[seen].T)
            scores[token - first, seen] = weights[token].double() @ products
    return scores
