"""Cases of calls whose queries come with key ranges of their own, as over one DCP rank's share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import PagedBatch
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import UNQUANTISED, index_layout
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import DECODE, MIXED, BatchCase, batches
from hal.testing.compare import expect_close, expect_wide
from hal.testing.storage import build_cache, copy_cache, make_generator, paged_batch, poisoned, random_tensor, torch_dtype

from .layouts import LATENTS, declared_layouts, heads_layout, on_device, rows_layout, sizes_for
from .placement import place_of
from .results import check_attention

LORA, ROPE = 32, 16


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case that the declaration calls for; none where key ranges are not honoured."""
    if not capabilities.key_ranges:
        return
    for layout in declared_layouts(capabilities, "attention", "mla"):
        # What a quantised row holds has nothing to do with who sees it.
        few = (lambda _: (MIXED, DECODE)) if layout not in UNQUANTISED else batches
        for dtype, block_size, batch in sizes_for(layout, sizes).sweep(few):
            name = describe("paged_attention", layout, dtype, f"page{block_size}", batch.id, "key_ranges")
            yield Case(call="paged_attention", id=name, check=partial(check_paged, layout, dtype, block_size, batch, name))
    if "indexer" not in capabilities.index_layouts:
        return
    for block_size in sizes.block_sizes:
        for batch in (MIXED, DECODE):
            name = describe("index_scores", f"page{block_size}", batch.id, "key_ranges")
            yield Case(call="index_scores", id=name, check=partial(check_scores, sizes.dtype, block_size, batch, name))


def check_paged(layout: str, dtype: str, block_size: int, case: BatchCase, name: str, backend: Backend) -> None:
    """Ranges replace causality, and are the same whatever the lengths would say."""
    generator, where = make_generator(name), place_of(backend)
    is_latent = layout in LATENTS
    kind = rows_layout(layout, (LORA, ROPE), dtype) if is_latent else heads_layout(layout, 2, (16, 16), dtype)
    kind = on_device(kind, backend)
    cache, table = build_cache(kind, case.seq_lens, block_size, generator)
    q = random_tensor(generator, case.num_tokens, 4, LORA + ROPE if is_latent else 16, dtype=dtype)
    ranged = _with_ranges(case, paged_batch(case, table), generator)
    expected = reference.paged_attention(q, cache, ranged, softmax_scale=0.3)
    out = poisoned(*q.shape[:2], expected[0].shape[2], dtype=torch_dtype(dtype), device=where)
    moved = _to(ranged, where)
    given_q, given_cache = q.to(where), copy_cache(cache, where)
    call = partial(backend.paged_attention, given_q, given_cache, moved, softmax_scale=0.3, need_lse=True)
    check_attention(lambda given: call(out=given), expected, out, torch_dtype(dtype), True)


def check_scores(dtype: str, block_size: int, case: BatchCase, name: str, backend: Backend) -> None:
    """Scores are -inf outside a query's range."""
    generator, where = make_generator(name), place_of(backend)
    cache, table = build_cache(index_layout(32, dtype), case.seq_lens, block_size, generator)
    iq = random_tensor(generator, case.num_tokens, 4, 32, dtype=dtype, scale=0.2)
    weights = random_tensor(generator, case.num_tokens, 4, dtype="float32")
    ranged = _with_ranges(case, paged_batch(case, table), generator)
    expected = reference.index_scores(iq, weights, cache, ranged)
    scores = backend.index_scores(iq.to(where), weights.to(where), copy_cache(cache, where), _to(ranged, where))
    expect_wide(scores, dtype, "scores")
    expect_close(scores, expected, "float32", "scores")


def _with_ranges(case: BatchCase, batch: PagedBatch, generator: torch.Generator) -> PagedBatch:
    """A random range for every query, a third of them empty and anywhere; padded queries have an empty one."""
    lengths = torch.zeros(case.num_tokens, dtype=torch.int32)
    for token, (request, _) in enumerate(case.positions):
        lengths[token] = case.seq_lens[request]
    ends = (torch.rand(2, case.num_tokens, generator=generator) * (lengths + 1)).int()
    starts, stops = ends.amin(0), ends.amax(0)
    is_empty = torch.rand(case.num_tokens, generator=generator) < 1 / 3
    return replace(batch, key_starts=starts, key_stops=torch.where(is_empty, starts, stops))


def _to(batch: PagedBatch, where: str) -> PagedBatch:
    names = ("query_start_loc", "seq_lens", "block_table", "key_starts", "key_stops")
    return replace(batch, **{name: getattr(batch, name).to(where) for name in names})
