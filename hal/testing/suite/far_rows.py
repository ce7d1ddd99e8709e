"""Cases of rows so far into a cache that their address does not fit in 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from hal.common.backend import Backend
from hal.common.capabilities import Capabilities
from hal.common.kernels import KVCache, PagedBatch, Segment
from hal.common.layouts import latent_layout
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect_close, expect_identical
from hal.testing.storage import make_generator, random_tensor, torch_dtype

from .layouts import declared_layouts
from .placement import place_of

LORA, ROPE = 512, 64
LIMIT = 2**31


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Cases of every call that addresses a cache, on a latent cache of half-precision rows; 4 GiB that are hardly touched."""
    dtype = next((name for name in ("bfloat16", "float16") if name in sizes.dtypes), None)
    names = declared_layouts(capabilities, *capabilities.kv_layouts)
    if not sizes.profile.has_far_rows or dtype is None or "latent" not in names:
        return
    block_size = sizes.block_sizes[-1]
    checks = {"write_cache": check_write, "gather_cache": check_gather, "sparse_mla": check_sparse}
    if "latent" in declared_layouts(capabilities, "mla"):
        checks["paged_attention"] = check_paged
    for call, check in checks.items():
        name = describe(call, dtype, f"page{block_size}", "past_2_to_31_elements")
        yield Case(call=call, id=name, check=partial(check, name, dtype, block_size))


def check_write(name: str, dtype: str, block_size: int, backend: Backend) -> None:
    """Parts land in the last page."""
    cache, parts, row = _far_cache(name, dtype, block_size, backend)
    slot = torch.tensor([(cache.num_pages - 1) * block_size], device=parts[0].device)
    backend.write_cache(cache, slot, *parts)
    expect_identical(cache.rows[row], torch.cat(parts, dim=1)[0], "the last page's first row")


def check_gather(name: str, dtype: str, block_size: int, backend: Backend) -> None:
    """Parts come from the last page."""
    cache, parts, row = _far_cache(name, dtype, block_size, backend)
    cache.rows[row] = torch.cat(parts, dim=1)[0]
    for part, wanted in zip(backend.gather_cache(cache, _ints([row], parts)), parts, strict=True):
        expect_close(part, wanted, dtype, "the last page's first row")


def check_sparse(name: str, dtype: str, block_size: int, backend: Backend) -> None:
    """A token attends to one row of the last page, whose latent part is then the result."""
    cache, parts, row = _far_cache(name, dtype, block_size, backend)
    cache.rows[row] = torch.cat(parts, dim=1)[0]
    q = torch.cat(parts, dim=1)[:, None].repeat(1, 4, 1)
    rows = _ints([row] + [-1] * 127, parts)[None]
    out, _ = backend.sparse_mla(q, [Segment(cache, rows, _ints([1], parts))], kv_lora_rank=LORA, softmax_scale=0.01)
    expect_close(out, parts[0][:, None].repeat(1, 4, 1), dtype, "out")


def check_paged(name: str, dtype: str, block_size: int, backend: Backend) -> None:
    """A request whose only page is the last."""
    cache, parts, row = _far_cache(name, dtype, block_size, backend)
    cache.rows[row] = torch.cat(parts, dim=1)[0]
    q = torch.cat(parts, dim=1)[:, None].repeat(1, 4, 1)
    batch = PagedBatch(_ints([0, 1], parts), _ints([1], parts), _ints([cache.num_pages - 1], parts)[None], 1, 1, 1)
    out, _ = backend.paged_attention(q, cache, batch, softmax_scale=0.01)
    expect_close(out, parts[0][:, None].repeat(1, 4, 1), dtype, "out")


def _far_cache(
    name: str, dtype: str, block_size: int, backend: Backend
) -> tuple[KVCache, tuple[torch.Tensor, torch.Tensor], int]:
    """A cache just past the limit, one token's parts, and the row of the last page's first token."""
    where, generator = place_of(backend), make_generator(name)
    pages = LIMIT // ((LORA + ROPE) * block_size) + 2
    storage = torch.empty(pages, block_size, LORA + ROPE, dtype=torch_dtype(dtype), device=where)
    cache = KVCache(storage, latent_layout(LORA, ROPE, dtype), block_size, block_size)
    parts = tuple(random_tensor(generator, 1, width, dtype=dtype).to(where) for width in (LORA, ROPE))
    return cache, (parts[0], parts[1]), (pages - 1) * block_size


def _ints(values: list[int], like: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=like[0].device)
