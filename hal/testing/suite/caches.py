"""Cases of write_cache and gather_cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import Layout
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect, expect_close, expect_dtype, expect_identical
from hal.testing.storage import (
    ROOMY,
    STRIDED,
    TIGHT,
    StorageCase,
    copy_cache,
    make_generator,
    poisoned_cache,
    random_scale,
    random_tensor,
    stored_elements,
)

from .layouts import declared_index_layouts, declared_layouts, on_device, sample_layout
from .placement import place_of, spread_rows

PAGES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCase:
    """Some tokens to write or read in a cache whose other rows are NaN. spreads_rows: parts are slices of a wider tensor."""

    layout: Layout
    block_size: int
    storage: StorageCase
    tokens: int = 11
    spreads_rows: bool = False

    @property
    def id(self) -> str:
        """Readable, and unique within a call's cases."""
        words = (f"{self.tokens}tokens" if self.tokens != 11 else "", "strided_parts" if self.spreads_rows else "")
        dtype = "" if self.layout.is_quantised else self.layout.dtype
        return describe(self.layout.name, dtype, f"page{self.block_size}", self.storage.id, *words)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of write_cache and gather_cache, for KV and index layouts."""
    names = dict.fromkeys((*declared_layouts(capabilities, *capabilities.kv_layouts), *declared_index_layouts(capabilities)))
    for name in names:
        for spec in _specs(name, sizes):
            yield Case(call="write_cache", id=describe("write_cache", spec.id), check=partial(check_write, spec))
            if not spec.spreads_rows:
                yield Case(call="gather_cache", id=describe("gather_cache", spec.id), check=partial(check_gather, spec))


def _specs(name: str, sizes: Sizes) -> Iterator[CacheCase]:
    for dtype, block_size, storage in sizes.sweep(lambda _: (TIGHT, STRIDED)):
        layout = sample_layout(name, dtype, sizes.profile)
        # What a quantised row holds does not depend on the type of what is computed.
        if dtype == sizes.dtype or not layout.is_quantised:
            yield CacheCase(layout=layout, block_size=block_size, storage=storage)
    usual = CacheCase(layout=sample_layout(name, sizes.dtype, sizes.profile), block_size=sizes.block_size, storage=ROOMY)
    yield usual
    yield replace(usual, tokens=0)
    yield replace(usual, tokens=1)
    yield replace(usual, spreads_rows=True)


def check_write(case: CacheCase, backend: Backend) -> None:
    """Raise ConformanceError unless the named slots hold the parts bit for bit, and no other byte of the storage changed."""
    generator, where = make_generator(case.id), place_of(backend)
    cache = _make_cache(case, backend, generator)
    slots = _random_places(generator, case.tokens, PAGES * case.block_size)
    parts = _random_parts(case.layout, case.tokens, generator)
    given_cache = copy_cache(cache, where)
    given = [spread_rows(part.to(where)) if case.spreads_rows else part.to(where) for part in parts]
    backend.write_cache(given_cache, slots.to(where), *given)
    reference.write_rows(cache, slots, parts)
    expect_identical(stored_elements(given_cache), stored_elements(cache), "storage after the write")


def check_gather(case: CacheCase, backend: Backend) -> None:
    """Raise ConformanceError unless it gives the parts that were written, and zeros for row -1 though every row around is NaN."""
    generator, where = make_generator(case.id), place_of(backend)
    cache = _make_cache(case, backend, generator)
    slots = _random_places(generator, min(case.tokens, PAGES * case.block_size), PAGES * case.block_size)
    reference.write_rows(cache, slots, _random_parts(case.layout, slots.numel(), generator))
    rows = torch.where(slots < 0, slots, _row_of_slot(cache, slots)).to(torch.int32)
    expected = reference.gather_rows(cache, rows)
    actual = backend.gather_cache(copy_cache(cache, where), rows.to(where))
    expect(len(actual) == len(expected), f"{len(actual)} parts came back; the layout has {len(expected)}")
    dtype = torch.float32 if case.layout.is_quantised else cache.storage.dtype
    for number, (part, wanted) in enumerate(zip(actual, expected, strict=True)):
        expect_dtype(part, dtype, f"part {number}")
        expect_close(part, wanted, dtype, f"part {number}")


def _make_cache(case: CacheCase, backend: Backend, generator: torch.Generator) -> KVCache:
    layout = on_device(case.layout, backend)
    return poisoned_cache(layout, PAGES, case.block_size, case.storage, random_scale(layout, generator))


def _row_of_slot(cache: KVCache, slots: torch.Tensor) -> torch.Tensor:
    return slots // cache.block_size * cache.page_stride + slots % cache.block_size


def _random_places(generator: torch.Generator, tokens: int, count: int) -> torch.Tensor:
    """Distinct int64 slots that leave slot 0 alone, every third one -1."""
    places = torch.full((tokens,), -1, dtype=torch.int64)
    chosen = torch.randperm(count - 1, generator=generator)[:tokens] + 1
    places[: chosen.numel()] = chosen
    places[::3] = -1
    return places


def _random_parts(layout: Layout, tokens: int, generator: torch.Generator) -> list[torch.Tensor]:
    dtype = "bfloat16" if layout.is_quantised else layout.dtype
    return [random_tensor(generator, tokens, prod(shape), dtype=dtype).reshape(tokens, *shape) for shape in layout.parts]
