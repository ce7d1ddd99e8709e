"""Cases of sparse_mla."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import Segment
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.parallel import Parallel
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import DECODE, MIXED, BatchCase, batches
from hal.testing.compare import expect_identical
from hal.testing.storage import (
    ROOMY,
    STRIDED,
    TIGHT,
    StorageCase,
    build_cache,
    copy_cache,
    make_generator,
    poisoned,
    random_tensor,
    torch_dtype,
)

from .layouts import declared_layouts, on_device, rows_layout, sizes_for
from .placement import place_of, spread_rows, untouched
from .results import check_attention, given_sink, random_sink

FULL, EMPTY = "full", "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseCase:
    """One call of sparse_mla; each query is given random rows of its own request. latent: (kv_lora_rank, qk_rope_head_dim).

    segments: one "full" or "empty" per list of rows; an empty one has only -1. every second list is half as wide.
    """

    layout: str
    dtype: str
    block_size: int
    batch: BatchCase
    heads: int
    latent: tuple[int, int]
    width: int
    note: str = ""
    storage: StorageCase = TIGHT
    segments: tuple[str, ...] = (FULL,)
    need_lse: bool = True
    gives_out: bool = True
    spreads_rows: bool = False
    repeats: bool = False
    has_sink: bool = False

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        page = f"page{self.block_size}"
        return describe("sparse_mla", self.layout, self.dtype, page, self.batch.id, self.note, self.storage.id)

    @property
    def value_width(self) -> int:
        """How much of a row is its value: the latent part, or all of a compressed row."""
        return sum(self.latent) if self.layout == "compressed" else self.latent[0]


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of sparse_mla that the declaration calls for."""
    for layout in declared_layouts(capabilities, "sparse_mla", "compressed"):
        for spec in _specs(layout, capabilities, sizes_for(layout, sizes)):
            yield Case(call="sparse_mla", id=spec.id, check=partial(check_sparse, spec))


def _specs(layout: str, capabilities: Capabilities, sizes: Sizes) -> Iterator[SparseCase]:
    usual = SparseCase(
        layout=layout,
        dtype=sizes.dtype,
        block_size=sizes.block_size,
        batch=MIXED,
        heads=sizes.latent_heads[0],
        latent=sizes.profile.latents[0],
        width=sizes.topk_widths[0],
        need_lse=capabilities.lse,
    )
    for dtype, block_size, batch in sizes.sweep(batches):
        yield replace(usual, dtype=dtype, block_size=block_size, batch=batch)
    for heads in sizes.latent_heads[1:]:
        yield replace(usual, heads=heads, note=f"{heads}heads")
    for lora, rope in sizes.profile.latents[1:]:
        yield replace(usual, latent=(lora, rope), note=f"lora{lora}_rope{rope}")
    for dtype in sizes.dtypes:
        yield replace(usual, dtype=dtype, width=sizes.topk_widths[1], note=f"width{sizes.topk_widths[1]}")
    for storage in (ROOMY, STRIDED):
        yield from (replace(usual, batch=batch, storage=storage) for batch in (MIXED, DECODE))
    lists = {
        "all_rows_absent": (EMPTY,),
        "two_lists": (FULL, FULL),
        "empty_then_full": (EMPTY, FULL),
        "full_then_empty": (FULL, EMPTY),
        "two_empty_lists": (EMPTY, EMPTY),
        "three_lists": (FULL, EMPTY, FULL),
    }
    for note, segments in lists.items():
        yield from (replace(usual, batch=batch, segments=segments, note=note) for batch in (MIXED, DECODE))
    yield replace(usual, note="two_strided_lists", segments=(FULL, FULL), storage=STRIDED)
    yield replace(usual, note="own_out", gives_out=False)
    yield replace(usual, note="no_lse", need_lse=False)
    yield replace(usual, note="strided_q", spreads_rows=True)
    if "sparse_mla" in capabilities.inner_sinks:
        for batch in (MIXED, DECODE):
            yield replace(usual, batch=batch, has_sink=True, note="sink")
        yield replace(usual, segments=(FULL, FULL), has_sink=True, need_lse=False, gives_out=False, note="sink_two_lists")
    if capabilities.deterministic:
        yield replace(usual, note="twice", repeats=True)


def check_sparse(case: SparseCase, backend: Backend) -> None:
    """Raise ConformanceError."""
    generator, where, dtype = make_generator(case.id), place_of(backend), torch_dtype(case.dtype)
    lora, tokens = case.value_width, case.batch.num_tokens
    q = random_tensor(generator, tokens, case.heads, sum(case.latent), dtype=case.dtype)
    segments = [_make_segment(case, backend, number, generator) for number in range(len(case.segments))]
    expected = reference.sparse_mla(q, segments, kv_lora_rank=lora, softmax_scale=0.2)
    given = [Segment(copy_cache(cache, where), rows.to(where), valid.to(where)) for cache, rows, valid in segments]
    out = poisoned(tokens, case.heads, lora, dtype=dtype, device=where) if case.gives_out else None
    given_q = spread_rows(q.to(where)) if case.spreads_rows else q.to(where)
    sink = random_sink(generator, case.heads, case.dtype) if case.has_sink else None
    if sink is not None:
        expected = reference.apply_sink(*expected, sink), expected[1]
        sink = sink.to(where)
    call = partial(_call, case, backend, given_q, given, sink)
    with untouched(q=given_q, rows=given[0].rows, valid=given[0].valid, cache=given[0].cache.storage):
        # Lists may be attended to one by one and merged.
        check_attention(call, expected, out, dtype, case.need_lse, roundings=len(segments))
    if case.repeats:
        expect_identical(call(None)[0], call(None)[0], "out of a second run")


def _call(
    case: SparseCase,
    backend: Backend,
    q: torch.Tensor,
    segments: Sequence[Segment],
    sink: torch.Tensor | None,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return backend.sparse_mla(
        q,
        segments,
        kv_lora_rank=case.value_width,
        softmax_scale=0.2,
        need_lse=case.need_lse,
        out=out,
        **given_sink(sink),
    )


def _make_segment(case: SparseCase, backend: Backend, number: int, generator: torch.Generator) -> Segment:
    """A list of rows in a cache of its own, the others' page size doubled and width halved every second time."""
    block_size = case.block_size * (1 + number % 2)
    layout = on_device(rows_layout(case.layout, case.latent, case.dtype), backend)
    cache, table = build_cache(layout, case.batch.seq_lens, block_size, generator, case.storage)
    topk = random_topk(case.batch, case.width, generator)
    if case.segments[number] == EMPTY:
        topk.fill_(-1)
    rows, valid = reference.rows_from_topk(
        topk,
        request_ids(case.batch),
        table if table.numel() else torch.full((1, 1), -1, dtype=torch.int32),
        torch.tensor(case.batch.seq_lens or (0,), dtype=torch.int32),
        block_size=block_size,
        rows_per_page=cache.page_stride,
        parallel=Parallel(),
    )
    return Segment(cache, rows, valid)


def random_topk(batch: BatchCase, width: int, generator: torch.Generator) -> torch.Tensor:
    """int32 [tokens, width]: distinct ids in random order up to each query's position, every fifth query one short or empty."""
    topk = torch.full((batch.num_tokens, width), -1, dtype=torch.int32)
    for token, (_, position) in enumerate(batch.positions):
        count = 0 if token % 5 == 4 else width - token % 2
        chosen = torch.randperm(max(position + 1, 0), generator=generator)[:count]
        topk[token, : chosen.numel()] = chosen.to(torch.int32)
    return topk


def request_ids(batch: BatchCase) -> torch.Tensor:
    """int32 [tokens]: the request of every query; 0 for padding."""
    ids = [request for request, _ in batch.positions]
    return torch.tensor(ids + [0] * batch.padded_tokens, dtype=torch.int32)
