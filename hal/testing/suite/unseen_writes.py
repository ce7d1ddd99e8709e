"""Cases of tokens written together: NaN and infinities in some leave the others' records, scales included, what they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import Layout
from hal.testing.case import Sizes, describe
from hal.testing.compare import expect_identical
from hal.testing.storage import copy_cache, make_generator, poisoned_cache, random_scale, random_tensor

from .layouts import declared_index_layouts, declared_layouts, on_device, sample_layout
from .placement import place_of
from .sight import Check, spoil_tensor

TOKENS, PAGES = 9, 12


def checks(capabilities: Capabilities, sizes: Sizes) -> Iterator[tuple[str, str, Check]]:
    """Every layout that is written."""
    for name in (*declared_layouts(capabilities, *capabilities.kv_layouts), *declared_index_layouts(capabilities)):
        layout = sample_layout(name, sizes.dtype, sizes.profile)
        yield "write_cache", describe(name, "other_tokens"), partial(_check, layout, sizes)


def _check(layout: Layout, sizes: Sizes, name: str, backend: Backend) -> None:
    """Every second token is NaN or infinite; the others' records are those of a write of numbers alone."""
    generator, where = make_generator(name), place_of(backend)
    layout = on_device(layout, backend)
    cache = poisoned_cache(layout, PAGES, sizes.block_size, scale=random_scale(layout, generator))
    dtype = sizes.dtype if layout.is_quantised else layout.dtype
    parts = [random_tensor(generator, TOKENS, *shape, dtype=dtype) for shape in layout.parts]
    odd = range(1, TOKENS, 2)
    rows = torch.randperm(PAGES * sizes.block_size, generator=generator)[:TOKENS]
    found, clean = (copy_cache(cache, where) for _ in range(2))
    backend.write_cache(clean, rows.to(where), *(part.to(where) for part in parts))
    backend.write_cache(found, rows.to(where), *(spoil_tensor(part, odd, generator).to(where) for part in parts))
    backend.write_cache(found, rows[odd].to(where), *(part[odd].to(where) for part in parts))
    expect_identical(found.storage, clean.storage, "tokens written beside NaN and infinities, which are then written over")
