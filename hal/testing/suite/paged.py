"""Cases of paged_attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import Layout
from hal.common.contract.masking import CAUSAL, Masking
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import DECODE, MIXED, MORE_QUERIES_THAN_KEYS, BatchCase, batches
from hal.testing.compare import expect_identical
from hal.testing.storage import (
    ROOMY,
    STRIDED,
    TIGHT,
    StorageCase,
    build_cache,
    copy_cache,
    make_generator,
    paged_batch,
    poisoned,
    poisoned_elements,
    random_tensor,
    torch_dtype,
)

from .layouts import LATENTS, declared_layouts, heads_layout, on_device, rows_layout, sizes_for
from .placement import place_of, spread_rows, untouched
from .results import check_attention, given_sink, random_sink


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCase:
    """One call of paged_attention. widths: (head_dim, v_head_dim) of a `kv` cache, (lora, rope) of latent rows.

    frees_pages: pages that no query sees any more are taken from the table. note: what sets the case apart in its id.
    """

    layout: str
    dtype: str
    block_size: int
    batch: BatchCase
    heads: int
    kv_heads: int
    widths: tuple[int, int]
    note: str = ""
    storage: StorageCase = TIGHT
    softmax_scale: float = 0.3
    masking: Masking = CAUSAL
    need_lse: bool = True
    gives_out: bool = True
    spreads_rows: bool = False
    frees_pages: bool = False
    repeats: bool = False
    has_sink: bool = False

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        return describe(
            "paged_attention", self.layout, self.dtype, f"page{self.block_size}", self.batch.id, self.note, self.storage.id
        )

    @property
    def cache_layout(self) -> Layout:
        """The layout of the cache."""
        if self.layout in LATENTS:
            return rows_layout(self.layout, self.widths, self.dtype)
        return heads_layout(self.layout, self.kv_heads, self.widths, self.dtype)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of paged_attention that the declaration calls for."""
    for layout in declared_layouts(capabilities, "attention", "mla"):
        for spec in _specs(layout, capabilities, sizes_for(layout, sizes)):
            yield Case(call="paged_attention", id=spec.id, check=partial(check_paged, spec))


def _specs(layout: str, capabilities: Capabilities, sizes: Sizes) -> Iterator[PagedCase]:
    is_latent = layout in LATENTS
    heads, kv_heads = (sizes.latent_heads[0], 1) if is_latent else sizes.heads[0]
    usual = PagedCase(
        layout=layout,
        dtype=sizes.dtype,
        block_size=sizes.block_size,
        batch=MIXED,
        heads=heads,
        kv_heads=kv_heads,
        widths=sizes.profile.latents[0] if is_latent else sizes.widths[0],
        need_lse=capabilities.lse,
    )
    for dtype, block_size, batch in sizes.sweep(batches):
        yield replace(usual, dtype=dtype, block_size=block_size, batch=batch)
    yield from _vary_form(usual)
    yield from _vary_latents(usual, sizes) if is_latent else _vary_heads(usual, sizes)
    for block_size in sizes.option_block_sizes:
        yield from _vary_options(replace(usual, block_size=block_size), capabilities)
    if "paged_attention" in capabilities.inner_sinks:
        for batch in (MIXED, DECODE):
            yield replace(usual, batch=batch, has_sink=True, note="sink")
        yield replace(usual, has_sink=True, need_lse=False, gives_out=False, note="sink_no_lse")
    if capabilities.deterministic:
        yield replace(usual, note="twice", repeats=True)


def _vary_heads(usual: PagedCase, sizes: Sizes) -> Iterator[PagedCase]:
    for heads, kv_heads in sizes.heads[1:]:
        yield replace(usual, heads=heads, kv_heads=kv_heads, note=f"{heads}heads_on_{kv_heads}")
    for widths in sizes.widths[1:]:
        for batch in (MIXED, DECODE):
            yield replace(usual, batch=batch, widths=widths, note=f"widths{widths[0]}_{widths[1]}")


def _vary_latents(usual: PagedCase, sizes: Sizes) -> Iterator[PagedCase]:
    for heads in sizes.latent_heads[1:]:
        yield replace(usual, heads=heads, note=f"{heads}heads")
    for lora, rope in sizes.profile.latents[1:]:
        yield replace(usual, widths=(lora, rope), note=f"lora{lora}_rope{rope}")


def _vary_form(usual: PagedCase) -> Iterator[PagedCase]:
    for storage in (ROOMY, STRIDED):
        for batch in (MIXED, DECODE):
            yield replace(usual, batch=batch, storage=storage)
    yield replace(usual, note="own_out", gives_out=False)
    yield replace(usual, note="no_lse", need_lse=False)
    yield replace(usual, note="strided_q", spreads_rows=True)
    yield replace(usual, note="scale1", softmax_scale=1.0)


def _vary_options(usual: PagedCase, capabilities: Capabilities) -> Iterator[PagedCase]:
    plain = [usual, replace(usual, batch=DECODE)]
    for case in plain:
        if capabilities.window:
            yield from (replace(case, masking=Masking(window=window), note=f"window{window}") for window in (1, 4, 16, 1000))
            yield replace(case, masking=Masking(window=5), frees_pages=True, note="window5_freed_pages")
        if capabilities.chunk:
            yield from (replace(case, masking=Masking(chunk=chunk), note=f"chunk{chunk}") for chunk in (1, 6, 16, 1000))
            yield replace(case, masking=Masking(chunk=6), frees_pages=True, note="chunk6_freed_pages")
        if capabilities.softcap:
            yield replace(case, masking=Masking(softcap=1.5), softmax_scale=1.0, note="softcap1.5")
        if capabilities.softcap and capabilities.window:
            yield replace(case, masking=Masking(softcap=1.5, window=4), note="softcap1.5_window4")
        if capabilities.non_causal:
            yield replace(case, masking=Masking(causal=False), note="non_causal")
    if capabilities.chunk and capabilities.non_causal:
        yield replace(usual, batch=MORE_QUERIES_THAN_KEYS, masking=Masking(chunk=6, causal=False), note="chunk6_non_causal")


def check_paged(case: PagedCase, backend: Backend) -> None:
    """Raise ConformanceError."""
    generator, where, dtype = make_generator(case.id), place_of(backend), torch_dtype(case.dtype)
    cache, table = build_cache(
        on_device(case.cache_layout, backend), case.batch.seq_lens, case.block_size, generator, case.storage
    )
    if case.frees_pages:
        _free_pages(case, cache, table)
    tokens, is_latent = case.batch.num_tokens, case.layout in LATENTS
    q = random_tensor(generator, tokens, case.heads, sum(case.widths) if is_latent else case.widths[0], dtype=case.dtype)
    expected = reference.paged_attention(
        q,
        cache,
        paged_batch(case.batch, table),
        softmax_scale=case.softmax_scale,
        masking=case.masking,
    )
    out = poisoned(tokens, case.heads, expected[0].shape[2], dtype=dtype, device=where) if case.gives_out else None
    given_q = spread_rows(q.to(where)) if case.spreads_rows else q.to(where)
    given_cache, batch = copy_cache(cache, where), paged_batch(case.batch, table, where)
    sink = random_sink(generator, case.heads, case.dtype) if case.has_sink else None
    if sink is not None:
        expected = reference.apply_sink(*expected, sink), expected[1]
        sink = sink.to(where)
    call = partial(_call, case, backend, given_q, given_cache, batch, sink)
    with untouched(q=given_q, cache=given_cache.storage, block_table=batch.block_table, seq_lens=batch.seq_lens):
        check_attention(call, expected, out, dtype, case.need_lse)
    if case.repeats:
        expect_identical(call(None)[0], call(None)[0], "out of a second run")


def _call(
    case: PagedCase,
    backend: Backend,
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    sink: torch.Tensor | None,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return backend.paged_attention(
        q,
        cache,
        batch,
        softmax_scale=case.softmax_scale,
        masking=case.masking,
        need_lse=case.need_lse,
        out=out,
        **given_sink(sink),
    )


def _free_pages(case: PagedCase, cache: KVCache, table: torch.Tensor) -> None:
    """Take the pages behind every query's reach from the table and poison them, as a window's page group does."""
    for request, (query_len, seq_len) in enumerate(zip(case.batch.query_lens, case.batch.seq_lens, strict=True)):
        position = seq_len - query_len
        window, chunk = case.masking.window, case.masking.chunk or 1
        first = max(0, position - window + 1) if window else position // chunk * chunk
        for column in range(first // case.block_size):
            page = cache.storage[int(table[request, column])]
            page.copy_(poisoned_elements(page.numel(), page.dtype).view(page.shape))
            table[request, column] = -1
