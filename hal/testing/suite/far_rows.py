"""Cases of rows so far into a cache that their address does not fit in 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect_close
from hal.testing.storage import make_generator, random_tensor, torch_dtype

from .layouts import ROWS, declared_layouts, on_device, rows_layout
from .placement import place_of

LORA, ROPE = 512, 64
LIMIT = 2**31
Far = tuple[KVCache, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], int]


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Cases of every call that addresses a cache, on latent rows of half precision or quantised; gigabytes hardly touched."""
    dtype = next((name for name in ("bfloat16", "float16") if name in sizes.dtypes), None)
    if not sizes.profile.has_far_rows or dtype is None:
        return
    block_size = sizes.block_sizes[-1]
    readers = {"sparse_mla": check_sparse, "paged_attention": check_paged}
    families = {"sparse_mla": ("sparse_mla", "compressed"), "paged_attention": ("mla",)}
    for layout in declared_layouts(capabilities, *capabilities.kv_layouts):
        if layout not in ROWS:
            continue
        checks = {"write_cache": check_write, "gather_cache": check_gather}
        checks |= {call: check for call, check in readers.items() if layout in declared_layouts(capabilities, *families[call])}
        for call, check in checks.items():
            name = describe(call, layout, dtype, f"page{block_size}", "past_2_to_31_elements")
            yield Case(call=call, id=name, check=partial(check, name, layout, dtype, block_size))


def check_write(name: str, layout: str, dtype: str, block_size: int, backend: Backend) -> None:
    """Parts land in the last page."""
    cache, parts, stored, _ = _far_cache(name, layout, dtype, block_size, backend)
    cache.storage[-1] = 0
    slot = torch.tensor([(cache.num_pages - 1) * block_size], device=parts[0].device)
    backend.write_cache(cache, slot, *parts)
    for part, wanted in zip(reference.read_parts(_last_page(cache), 0, 0), stored, strict=True):
        expect_close(part[None], wanted, "float32", "the last page's first row")


def check_gather(name: str, layout: str, dtype: str, block_size: int, backend: Backend) -> None:
    """Parts come from the last page."""
    cache, parts, stored, row = _far_cache(name, layout, dtype, block_size, backend)
    for part, wanted in zip(backend.gather_cache(cache, _ints([row], parts)), stored, strict=True):
        expect_close(part, wanted, "float32", "the last page's first row")


def check_sparse(name: str, layout: str, dtype: str, block_size: int, backend: Backend) -> None:
    """A token attends to one row of the last page, whose value is then the result."""
    cache, parts, stored, row = _far_cache(name, layout, dtype, block_size, backend)
    q = torch.cat(parts, dim=1)[:, None].repeat(1, 4, 1)
    rows = _ints([row] + [-1] * 127, parts)[None]
    width = cache.layout.widths[0]
    out, _ = backend.sparse_mla(q, [Segment(cache, rows, _ints([1], parts))], kv_lora_rank=width, softmax_scale=0.01)
    expect_close(out, stored[0][:, None].repeat(1, 4, 1), dtype, "out")


def check_paged(name: str, layout: str, dtype: str, block_size: int, backend: Backend) -> None:
    """A request whose only page is the last."""
    cache, parts, stored, _ = _far_cache(name, layout, dtype, block_size, backend)
    q = torch.cat(parts, dim=1)[:, None].repeat(1, 4, 1)
    batch = PagedBatch(_ints([0, 1], parts), _ints([1], parts), _ints([cache.num_pages - 1], parts)[None], 1, 1, 1)
    out, _ = backend.paged_attention(q, cache, batch, softmax_scale=0.01)
    expect_close(out, stored[0][:, None].repeat(1, 4, 1), dtype, "out")


def _far_cache(name: str, layout_name: str, dtype: str, block_size: int, backend: Backend) -> Far:
    """A cache just past the limit, a token's parts, what the last page's first row holds of them, and that row."""
    where, generator = place_of(backend), make_generator(name)
    layout = on_device(rows_layout(layout_name, (LORA, ROPE), dtype), backend)
    elements = layout.page_bytes(block_size) // torch_dtype(layout.dtype).itemsize
    pages = LIMIT // elements + 2
    storage = torch.empty(pages, elements, dtype=torch_dtype(layout.dtype), device=where)
    storage = storage.as_strided((pages, block_size, layout.width), (elements, layout.width, 1))
    scale = torch.full(layout.scale_shapes[0], 0.02, device=where) if layout.scale_shapes else None
    cache = KVCache(storage, layout, block_size, block_size, scale)
    parts = tuple(random_tensor(generator, 1, width, dtype=dtype) for width in layout.widths)
    page = _last_page(cache)
    reference.write_token(page, 0, 0, [part[0] for part in parts])
    cache.storage[-1] = page.storage[0].to(where)
    stored = tuple(part[None] for part in reference.read_parts(page, 0, 0))
    return cache, tuple(part.to(where) for part in parts), stored, (pages - 1) * block_size


def _last_page(cache: KVCache) -> KVCache:
    """A cache of the last page alone, on the host."""
    scale = None if cache.scale is None else cache.scale.cpu()
    return KVCache(cache.storage[-1:].cpu().contiguous(), cache.layout, cache.block_size, cache.rows_per_page, scale)


def _ints(values: list[int], like: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=like[0].device)
