"""Index scores of queries that see a key once its last token is there, whether or not a backend reads key ranges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.contract.layouts import index_layout
from hal.common.running.scoring import score_chunk
from hal.common.stepping.chunks import plan_scores

PAGE, WIDTH, HEADS = 3, 4, 2


class Calls:
    """The CPU's index_scores, said to read key ranges or not."""

    def __init__(self, reads: bool) -> None:
        self.reads = reads
        self.calls = hal.kernels("cpu")

    def reads_key_ranges(self, call: str) -> bool:
        return self.reads and call == "index_scores"


@pytest.mark.parametrize("reads", [False, True], ids=lambda reads: "ranges" if reads else "apart")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=4),
    shared=st.sampled_from([2, 4]),
    cap=st.sampled_from([1, 7, 1000]),
)
def test_every_query_sees_the_keys_that_are_closed(reads: bool, lengths: list[tuple[int, int]], shared: int, cap: int) -> None:
    queries, seqs = [new for new, _ in lengths], [new + past for new, past in lengths]
    tokens = sum(queries)
    generator = torch.Generator().manual_seed(tokens)
    table = torch.randperm(40, generator=generator)[: 5 * len(lengths)].reshape(-1, 5).to(torch.int32)
    storage = torch.randn(40, PAGE, WIDTH, generator=generator, dtype=torch.float64)
    cache = hal.KVCache(storage, index_layout(WIDTH, "float64"), PAGE, PAGE)
    iq = torch.randn(tokens, HEADS, WIDTH, generator=generator, dtype=torch.float64)
    weights = torch.randn(tokens, HEADS, generator=generator, dtype=torch.float64)
    owners = [(request, seq - new + i) for request, (new, seq) in enumerate(zip(queries, seqs, strict=True)) for i in range(new)]
    stops = [(position + 1) // shared for _, position in owners]
    batch = hal.PagedBatch(
        torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
        torch.tensor([seq // shared for seq in seqs], dtype=torch.int32),
        table,
        max(queries),
        max(seqs) // shared,
        key_stops=torch.tensor(stops, dtype=torch.int32),
    )
    req_id = torch.tensor([request for request, _ in owners], dtype=torch.int32)
    calls = Calls(reads)
    for chunk in plan_scores(queries, seqs, 0, cap, shared):
        found = score_chunk(calls, iq, weights, cache, batch, req_id, chunk)
        assert found.shape == (chunk.token_stop - chunk.token_start, chunk.max_seq_len)
        for row, token in zip(found, range(chunk.token_start, chunk.token_stop), strict=True):
            keys = [storage[table[owners[token][0], key // PAGE], key % PAGE] for key in range(stops[token])]
            expected = [float(torch.relu(iq[token] @ key) @ weights[token]) for key in keys]
            torch.testing.assert_close(row[: len(keys)].double(), torch.tensor(expected, dtype=torch.float64))
            assert (row[len(keys) :] == -torch.inf).all()
