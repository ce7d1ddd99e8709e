"""Caches of bytes in forms that the suite's small widths do not reach, against the CPU's codecs and calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from hal import Device, kernels
from hal.common.backends.registry import find_backend
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.layouts import (
    Layout,
    attention_fp8_layout,
    change_variant,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    latent_fp8_layout,
)
from hal.common.contract.records import allocate_pages, as_bytes
from hal.testing.compare import expect_close
from hal.testing.storage import make_generator, random_scale

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)

CPU = kernels("cpu")
PAGES, PAGE = 2, 16
VARIANTS = {"e4m3fn": ("cuda:triton", "cuda:sm_90"), "e4m3fnuz": ("rocm:triton", "rocm:gfx942")}
LAYOUTS: dict[str, Layout] = {
    "latent_bytes": latent_fp8_layout(160, 16),
    "records_of_two_scales": fp8_ds_mla_layout(160, 16),
    "records_of_three_scales": fp8_ds_mla_layout(320, 64),
    "records_of_powers": fp8_ds_mla_layout(160, 16, power_of_two_scales=True),
    "records_at_odd_addresses": fp8_ds_mla_layout(33, 6),
    "records_without_a_rotary_part": fp8_ds_mla_layout(256, 0),
    "compressed": compressed_layout(144, 16),
    "compressed_of_one_scale": compressed_layout(48, 16),
    "compressed_at_odd_addresses": compressed_layout(73, 6),
    "heads": attention_fp8_layout(2, 24, 40),
    "one_head": attention_fp8_layout(1, 20, 12),
    "index_keys": index_fp8_layout(128),
    "index_keys_of_two_scales": index_fp8_layout(160),
    "index_keys_of_powers": index_fp8_layout(64, power_of_two_scales=True),
    "index_keys_in_tiles": index_fp8_layout(64, tile=(16, 16)),
}
MLA = [name for name, layout in LAYOUTS.items() if layout.name in ("latent_fp8", "fp8_ds_mla")]
KEYS = [name for name, layout in LAYOUTS.items() if layout.name == "indexer_fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A backend of an encoding and a cache with a token in every row, as the CPU wrote them, and what was written."""

    backend: object
    cache: KVCache
    parts: tuple[torch.Tensor, ...]


def allocate(layout: Layout, generator: torch.Generator, ahead: int = 0) -> KVCache:
    """Zeroed pages that begin some bytes into their memory."""
    pages = allocate_pages(layout, PAGES, PAGE, "cpu")
    if ahead:
        memory = torch.zeros(pages.untyped_storage().nbytes() + ahead, dtype=torch.uint8).view(pages.dtype)
        pages = memory.as_strided(pages.shape, pages.stride(), ahead)
    return KVCache(pages, layout, PAGE, PAGE, random_scale(layout, generator))


def make(name: str, variant: str, ahead: int = 0) -> Filled:
    """A cache of normal values, and what was written."""
    generator = make_generator(f"{name}-{variant}")
    backend, target = VARIANTS[variant]
    layout = change_variant(LAYOUTS[name], variant)
    cache = allocate(layout, generator, ahead)
    parts = [torch.randn(PAGES * PAGE, *part, generator=generator) for part in layout.parts]
    CPU.write_cache(cache, torch.arange(PAGES * PAGE), *parts)
    opened = find_backend(backend)(Device.from_arch(target, torch_device="cpu"))
    return Filled(backend=opened, cache=cache, parts=tuple(parts))


def odd_values(part: torch.Tensor) -> torch.Tensor:
    """Values of every size: NaN, infinities and -0 in some of a part's tokens, others of zeros and of denormal numbers."""
    sizes = 10.0 ** (torch.arange(part.shape[0]) % 9 - 4)
    part = part * sizes.view(-1, *[1] * (part.dim() - 1))
    flat = part.view(part.shape[0], -1)
    for token, value in enumerate((torch.nan, torch.inf, -torch.inf, -0.0, 1e38)):
        flat[token, :: token + 2] = value
    flat[6], flat[7] = 0.0, flat[7] * 1e-39
    return part


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("name", "ahead"), [*((name, 0) for name in LAYOUTS), ("records_of_two_scales", 1), ("index_keys", 1)])
def test_bytes_are_those_that_the_codec_writes(name: str, ahead: int, variant: str) -> None:
    filled = make(name, variant, ahead)
    parts = [odd_values(part) for part in filled.parts]
    slots = torch.randperm(PAGES * PAGE, generator=make_generator(name))
    slots[9::2] = -1
    mine = allocate(filled.cache.layout, make_generator(f"{name}-{variant}"), ahead)
    theirs = allocate(filled.cache.layout, make_generator(f"{name}-{variant}"), ahead)
    filled.backend.write_cache(mine, slots, *parts)
    CPU.write_cache(theirs, slots, *parts)
    assert torch.equal(as_bytes(mine.storage), as_bytes(theirs.storage))
    rows = torch.cat([slots, torch.tensor([PAGES * PAGE, -7])]).int()
    for found, wanted in zip(filled.backend.gather_cache(theirs, rows), CPU.gather_cache(theirs, rows), strict=True):
        assert torch.equal(found.view(torch.int32)[~wanted.isnan()], wanted.view(torch.int32)[~wanted.isnan()])
        assert torch.equal(found.isnan(), wanted.isnan())


def _compare(filled: Filled, call: Callable[[object], tuple[torch.Tensor, torch.Tensor | None]], dtype: torch.dtype) -> None:
    for found, wanted, kind in zip(call(filled.backend), call(CPU), (dtype, torch.float32), strict=True):
        # The CPU's results are rounded to the type as well.
        expect_close(found, wanted.double(), kind, "what the CPU gives", roundings=2)


BATCH = PagedBatch(
    query_start_loc=torch.tensor([0, 1, 4], dtype=torch.int32),
    seq_lens=torch.tensor([29, 16], dtype=torch.int32),
    block_table=torch.tensor([[1, 0], [0, -1]], dtype=torch.int32),
    max_query_len=3,
    max_seq_len=29,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MLA)
def test_latents_are_attended_to_as_on_the_cpu(name: str, variant: str, dtype: torch.dtype) -> None:
    filled = make(name, variant)
    lora, rope = filled.cache.layout.widths
    q = (torch.randn(4, 3, lora + rope, generator=make_generator(name)) * 0.05).to(dtype)
    options = {"softmax_scale": 0.1, "need_lse": True}
    _compare(filled, lambda backend: backend.paged_attention(q, filled.cache, BATCH, **options), dtype)
    rows = torch.randperm(PAGES * PAGE, generator=make_generator(name))[:32].int().view(4, 8)
    segment = Segment(filled.cache, rows, torch.tensor([8, 3, 0, 7], dtype=torch.int32))
    _compare(filled, lambda backend: backend.sparse_mla(q, [segment], kv_lora_rank=lora, **options), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.startswith("compressed")])
def test_compressed_rows_are_attended_to_as_on_the_cpu(name: str, variant: str, dtype: torch.dtype) -> None:
    """A row is key and value as a whole, in two lists of pages of different sizes."""
    filled = make(name, variant)
    (width,) = filled.cache.layout.widths
    q = (torch.randn(4, 3, width, generator=make_generator(name)) * 0.05).to(dtype)
    rows = torch.randperm(PAGES * PAGE, generator=make_generator(name))[:32].int().view(4, 8)
    counts = torch.tensor([8, 3, 0, 7], dtype=torch.int32)
    lists = [Segment(filled.cache, rows, counts), Segment(filled.cache, rows.flip(0), counts)]
    options = {"kv_lora_rank": width, "softmax_scale": 0.1, "need_lse": True}
    for segments in (lists[:1], lists):
        _compare(filled, lambda backend, segments=segments: backend.sparse_mla(q, segments, **options), dtype)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KEYS)
def test_keys_are_scored_as_on_the_cpu(name: str, variant: str) -> None:
    filled = make(name, variant)
    generator = make_generator(name)
    iq = torch.randn(4, 5, *filled.cache.layout.widths, generator=generator) * 0.05
    weights = torch.randn(4, 5, generator=generator) * 0.01
    found, wanted = (backend.index_scores(iq, weights, filled.cache, BATCH) for backend in (filled.backend, CPU))
    expect_close(found, wanted.double(), torch.float32, "scores")
