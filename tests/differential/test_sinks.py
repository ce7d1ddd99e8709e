"""Item 13: a sink is one more exponential in the denominator, once, after everything is joined; dropped, results are wrong."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from hal.common.contract.call_values import Segment
from hal.common.contract.layouts import latent_layout
from hal.testing.case import FULL, fit_sizes
from hal.testing.suite.placement import place_of

from .helpers.softmax import attend, check_rows, draw_cache
from .helpers.targets import ON_KERNELS, ints, open_target

HEADS, LORA, ROPE, WIDTH = 4, 16, 16, 8
SINKS = st.lists(st.sampled_from([-math.inf, -40.0, -1.0, 0.0, 2.5, 30.0]), min_size=HEADS, max_size=HEADS)
COUNTS = st.lists(st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH)), min_size=1, max_size=4)


@ON_KERNELS
@given(counts=COUNTS, sinks=SINKS, joined=st.booleans(), seed=st.integers(0, 2**31))
def test_two_key_lists_under_one_softmax_with_a_sink(
    target, counts: list[tuple[int, int]], sinks: list[float], joined: bool, seed: int
) -> None:
    """Compressed entries and a window, in one call or merged from two; either list, or both, may be empty for a token."""
    backend = open_target(target, "sparse_mla")
    open_target(target, "apply_sink")
    where, generator = place_of(backend), torch.Generator().manual_seed(seed)
    size = fit_sizes(target.backend.capabilities, FULL).block_sizes[0]
    layout = latent_layout(LORA, ROPE, "float32")
    caches = [draw_cache(layout, 2, size, generator, where) for _ in range(2)]
    segments, keys = [], [[] for _ in counts]
    for side, drawn in enumerate(caches):
        usable = [page * drawn.cache.page_stride + offset for page in range(2) for offset in range(size)]
        rows = []
        for own, count in zip(keys, counts, strict=True):
            picks = [usable[i] for i in torch.randint(len(usable), (count[side],), generator=generator).tolist()]
            own += [drawn.rows[row] for row in picks]
            rows.append(picks + [-1] * (WIDTH - len(picks)))
        segments.append(Segment(drawn.cache, ints(rows, where), ints([count[side] for count in counts], where)))
    q = torch.randn(len(counts), HEADS, LORA + ROPE, generator=generator)
    options = {"kv_lora_rank": LORA, "softmax_scale": 0.3, "need_lse": True}
    if joined:
        out, lse = backend.sparse_mla(q.to(where), segments, **options)
    else:
        first, second = (backend.sparse_mla(q.to(where), (segment,), **options) for segment in segments)
        out, lse = backend.merge_states(*first, *second)
    result = backend.apply_sink(out, lse, torch.tensor(sinks, device=where))
    for found, level, own_sinks in ((out, lse, [None] * HEADS), (result, None, sinks)):
        expected = [
            [attend(q[t, h].tolist(), own, [row[:LORA] for row in own], 0.3, own_sinks[h]) for h in range(HEADS)]
            for t, own in enumerate(keys)
        ]
        check_rows(found, level, expected)
