"""Cases of index_scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import IndexerChunk
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import MIXED, BatchCase, batches
from hal.testing.compare import expect, expect_close, expect_wide
from hal.testing.storage import (
    ROOMY,
    STRIDED,
    TIGHT,
    StorageCase,
    build_cache,
    copy_cache,
    make_generator,
    paged_batch,
    random_tensor,
)

from .layouts import declared_index_layouts, keys_layout, on_device, sizes_for
from .placement import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCase:
    """One call of index_scores. chunk: (first token, token after the last) where only a part of the batch is scored."""

    layout: str
    dtype: str
    block_size: int
    batch: BatchCase
    heads: int
    head_dim: int
    note: str = ""
    storage: StorageCase = TIGHT
    chunk: tuple[int, int] | None = None

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        run = f"tokens{self.chunk[0]}to{self.chunk[1]}" if self.chunk else ""
        page = f"page{self.block_size}"
        return describe("index_scores", self.layout, self.dtype, page, self.batch.id, self.note, run, self.storage.id)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of index_scores that the declaration calls for."""
    for layout in declared_index_layouts(capabilities):
        for spec in _specs(layout, sizes_for(layout, sizes)):
            yield Case(call="index_scores", id=spec.id, check=partial(check_scores, spec))


def _specs(layout: str, sizes: Sizes) -> Iterator[ScoreCase]:
    heads, head_dim = sizes.profile.index
    usual = ScoreCase(layout=layout, dtype=sizes.dtype, block_size=sizes.block_size, batch=MIXED, heads=heads, head_dim=head_dim)
    for dtype, block_size, batch in sizes.sweep(batches):
        yield replace(usual, dtype=dtype, block_size=block_size, batch=batch)
    yield from (replace(usual, heads=count, note=f"{count}heads") for count in (1, 16))
    yield from (replace(usual, storage=storage) for storage in (ROOMY, STRIDED))
    for block_size in sizes.option_block_sizes:
        for chunk in ((0, 5), (2, 3), (5, 14), (7, 12), (14, 15), (0, 15), (6, 6)):
            yield replace(usual, block_size=block_size, chunk=chunk)


def check_scores(case: ScoreCase, backend: Backend) -> None:
    """Raise ConformanceError."""
    generator, where = make_generator(case.id), place_of(backend)
    layout = on_device(keys_layout(case.layout, case.head_dim, case.dtype), backend)
    cache, table = build_cache(layout, case.batch.seq_lens, case.block_size, generator, case.storage)
    tokens = case.batch.num_tokens
    iq = random_tensor(generator, tokens, case.heads, case.head_dim, dtype=case.dtype, scale=case.head_dim**-0.5)
    weights = random_tensor(generator, tokens, case.heads, dtype="float32")
    chunk = _make_chunk(case)
    expected = reference.index_scores(iq, weights, cache, paged_batch(case.batch, table), chunk)
    scores = backend.index_scores(
        iq.to(where), weights.to(where), copy_cache(cache, where), paged_batch(case.batch, table, where), chunk
    )
    expect_wide(scores, case.dtype, "scores")
    expect_close(scores, expected, "float32", "scores")
    expect(not bool(scores.isnan().any()), "scores hold NaN")


def _make_chunk(case: ScoreCase) -> IndexerChunk | None:
    if case.chunk is None:
        return None
    first, stop = case.chunk
    covered = case.batch.positions[first:stop]
    requests = [request for request, _ in covered] or [0]
    return IndexerChunk(
        token_start=first,
        token_stop=stop,
        request_start=min(requests),
        request_stop=max(requests) + bool(covered),
        max_seq_len=max((position + 1 for _, position in covered), default=0),
    )
