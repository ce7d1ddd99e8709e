"""Random batches for the builder."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import hal

from .engine import JUNK

BLOCKS = 1000


@st.composite
def batches(draw, block_size: int = 4, num_groups: int = 3) -> tuple[hal.Batch, list[bool] | None]:
    """Query lengths from 0, or 1 for all, contexts from 0, tables shared or per group with junk beyond the last page."""
    query_lens = draw(st.sampled_from([st.integers(0, 5), st.just(1)]))
    lengths = draw(st.lists(st.tuples(query_lens, st.integers(0, 59)), max_size=8))
    queries, seqs = [query for query, _ in lengths], [query + past for query, past in lengths]
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    pages = [-(-seq // block_size) for seq in seqs]
    width = max(pages, default=0) + draw(st.integers(0, 20))
    tables = []
    for _ in range(draw(st.sampled_from([1, num_groups]))):
        table = np.full((len(queries), width), draw(st.sampled_from([JUNK, -1, 0])), np.int32)
        # No page is two requests': two that write to one are refused.
        ids, ends = rng.permutation(BLOCKS), np.cumsum(pages)
        for row, count, end in zip(table, pages, ends, strict=True):
            row[:count] = ids[end - count : end]
        tables.append(table)
    flags = draw(st.none() | st.lists(st.booleans(), min_size=len(queries), max_size=len(queries)))
    return hal.Batch(queries, seqs, tables, is_prefilling=flags), flags
