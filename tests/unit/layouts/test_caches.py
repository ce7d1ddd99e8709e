"""Quantised storages: planes, tiles, strides, scales, and what is refused; pages moved to another platform's form."""

from __future__ import annotations

import copy

import pytest
import torch

import hal
from hal.common.contract.call_values import KVCache
from hal.common.contract.convert import convert_cache
from hal.common.contract.layouts import (
    Layout,
    attention_fp8_layout,
    attention_layout,
    change_variant,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    latent_fp8_layout,
)
from hal.common.contract.layouts.parse import parse_layout
from hal.common.contract.records import allocate_pages, read_records, write_records
from hal.testing import reference
from hal.testing.storage import random_scale

INDEX = index_fp8_layout(128)
TILED = index_fp8_layout(128, tile=(16, 16))
COMPRESSED = compressed_layout(512, 64)
LAYOUTS = {
    "latent_fp8": latent_fp8_layout(24, 8),
    "kv_fp8": attention_fp8_layout(2, 8, 4),
    "fp8_ds_mla": fp8_ds_mla_layout(128, 8),
    "indexer_fp8": INDEX,
    "tiled_indexer_fp8": TILED,
    "compressed": compressed_layout(128, 16),
}


def make_cache(layout: Layout, pages: int = 3, block_size: int = 16, seed: int = 0) -> KVCache:
    """A cache filled with random tokens by the reference."""
    generator = torch.Generator().manual_seed(seed)
    scale = random_scale(layout, generator)
    cache = KVCache(allocate_pages(layout, pages, block_size, "cpu"), layout, block_size, block_size, scale)
    parts = [torch.randn(pages * block_size, *part, generator=generator) for part in layout.parts]
    reference.write_rows(cache, torch.arange(pages * block_size), parts)
    return cache


def test_a_page_of_index_keys_has_all_values_before_all_scales() -> None:
    cache = KVCache(torch.zeros(2, 2, 132, dtype=torch.uint8), INDEX, 2, 2)
    keys = torch.zeros(2, 128)
    keys[0, 0], keys[1, 0] = 448.0, -896.0
    write_records(cache, torch.tensor([2, 3]), INDEX.pack([keys]))
    page = bytes(cache.storage[1].flatten().tolist())
    assert page[:128].hex() == "7e" + "00" * 127
    assert page[128:256].hex() == "fe" + "00" * 127
    assert page[256:].hex() == "0000803f" + "00000040"
    assert not cache.storage[0].any()


def test_a_page_of_compressed_rows_has_all_rows_before_all_scales_and_is_padded() -> None:
    storage = allocate_pages(COMPRESSED, 2, 64, "cpu")
    assert storage.stride() == (37440, 584, 1)
    cache = KVCache(storage, COMPRESSED, 64, 64)
    row = torch.zeros(1, 512)
    row[0, 0], row[0, 448] = 448.0, 1.0
    write_records(cache, torch.tensor([65]), COMPRESSED.pack([row]))
    page = storage.as_strided((37440,), (1,), 37440)
    assert page[576].item() == 0x7E
    assert bytes(page[576 + 448 : 576 + 450].tolist()).hex() == "803f"
    assert page[64 * 576 + 8 : 64 * 576 + 16].tolist() == [127, 105, 105, 105, 105, 105, 105, 0]
    assert int((page != 0).sum()) == 1 + 2 + 7


def test_tiles_hold_sixteen_tokens_by_sixteen_bytes() -> None:
    cache = KVCache(allocate_pages(TILED, 1, 32, "cpu"), TILED, 32, 32)
    records = torch.arange(32 * 132).remainder(251).to(torch.uint8).view(32, 132)
    write_records(cache, torch.arange(32), records)
    page = cache.storage[0].flatten()
    for token, byte in [(0, 0), (0, 15), (0, 16), (1, 0), (15, 127), (16, 0), (31, 127), (17, 40)]:
        place = token // 16 * 16 * 128 + byte // 16 * 256 + token % 16 * 16 + byte % 16
        assert page[place] == records[token, byte]
    assert torch.equal(page[32 * 128 :].view(32, 4), records[:, 128:])
    assert torch.equal(read_records(cache, torch.arange(32)), records)


@pytest.mark.parametrize("name", LAYOUTS)
def test_records_are_read_where_the_definition_puts_them(name: str) -> None:
    cache = make_cache(LAYOUTS[name])
    rows = torch.tensor([47, 0, 16, 31, 5, 5])
    found = cache.layout.unpack(read_records(cache, rows), cache.scale)
    for part, wanted in zip(found, reference.gather_rows(cache, rows), strict=True):
        torch.testing.assert_close(part.double(), wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_quantised_layout_is_read_back_from_its_description(name: str) -> None:
    for layout in (LAYOUTS[name], change_variant(LAYOUTS[name], "e4m3fnuz")):
        assert parse_layout(layout.description) == layout


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((layout, change_variant(layout, "e4m3fnuz")) for layout in LAYOUTS.values()),
        *((change_variant(layout, "e4m3fnuz"), layout) for layout in LAYOUTS.values()),
        (INDEX, TILED),
        (TILED, change_variant(INDEX, "e4m3fnuz")),
        (attention_layout(2, 8, 4, "bfloat16"), attention_layout(2, 8, 4, "bfloat16")),
    ],
    ids=lambda layout: f"{layout.name}-{layout.fp8}{'-tiled' * (layout.tile is not None)}",
)
def test_pages_move_to_another_form_without_loss(source: Layout, target: Layout) -> None:
    here = make_cache(source)
    there = make_cache(target, seed=1)
    convert_cache(here, there)
    rows = torch.arange(48)
    expected = reference.gather_rows(here, rows)
    for part, wanted in zip(reference.gather_rows(there, rows), expected, strict=True):
        assert torch.equal(part, wanted)


def test_untouched_pages_move_as_zeros() -> None:
    for layout in LAYOUTS.values():
        scale = None if not layout.scale_shapes else torch.ones(layout.scale_shapes[0])
        other = change_variant(layout, "e4m3fnuz")
        here = KVCache(allocate_pages(layout, 2, 16, "cpu"), layout, 16, 16, scale)
        there = KVCache(allocate_pages(other, 2, 16, "cpu").fill_(1), other, 16, 16, None if scale is None else scale.clone())
        convert_cache(here, there)
        assert all(not part.any() for part in reference.gather_rows(there, torch.arange(32)))


def test_caches_that_do_not_go_together_are_refused_untouched() -> None:
    here = make_cache(INDEX)
    for there in (make_cache(index_fp8_layout(64)), make_cache(INDEX, pages=2), make_cache(LAYOUTS["compressed"])):
        before = there.storage.clone()
        with pytest.raises(hal.LayoutError, match="pages"):
            convert_cache(here, there)
        assert torch.equal(there.storage, before)
    one, many = make_cache(LAYOUTS["kv_fp8"]), make_cache(LAYOUTS["kv_fp8"])
    flat = KVCache(many.storage, many.layout, 16, 16, torch.ones(2))
    with pytest.raises(hal.LayoutError, match="scales"):
        convert_cache(one, flat)


def storage(*shape: int, strides: tuple[int, ...] | None = None, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    if strides is None:
        return torch.zeros(shape, dtype=dtype)
    return torch.zeros(200_000, dtype=dtype).as_strided(shape, strides)


FP8 = torch.float8_e4m3fn
KV_FP8 = attention_fp8_layout(2, 8, 4)
REFUSED = {
    "unpadded_pages": (lambda: KVCache(storage(3, 64, 584), COMPRESSED, 64, 64), ["37376", "576"]),
    "rows_apart": (lambda: KVCache(storage(3, 4, 132, strides=(1024, 136, 1)), INDEX, 4, 4), ["136", "dense"]),
    "overlapping_pages": (lambda: KVCache(storage(3, 4, 132, strides=(500, 132, 1)), INDEX, 4, 4), ["500", "528"]),
    "width": (lambda: KVCache(storage(3, 4, 128), INDEX, 4, 4), ["128", "132"]),
    "dtype": (lambda: KVCache(storage(3, 4, 132, dtype=torch.int8), INDEX, 4, 4), ["int8", "uint8"]),
    "other_variant": (lambda: KVCache(storage(3, 4, 24, dtype=torch.float8_e4m3fnuz), KV_FP8, 4, 4), ["e4m3fnuz", "e4m3fn"]),
    "tiles": (lambda: KVCache(storage(3, 24, 132), TILED, 24, 24), ["24", "16"]),
    "no_scale": (lambda: KVCache(storage(3, 4, 24, dtype=FP8), KV_FP8, 4, 4), ["none", "[2]", "[2, 2]"]),
    "scale_shape": (lambda: KVCache(storage(3, 4, 24, dtype=FP8), KV_FP8, 4, 4, torch.ones(3)), ["[3]", "[2, 2]"]),
    "scale_dtype": (lambda: KVCache(storage(3, 4, 24, dtype=FP8), KV_FP8, 4, 4, torch.ones(2).double()), ["float64"]),
    "scale_device": (
        lambda: KVCache(storage(3, 4, 24, dtype=FP8), KV_FP8, 4, 4, torch.ones(2, device="meta")),
        ["meta", "cpu"],
    ),
    "unwanted_scale": (lambda: KVCache(storage(3, 4, 132), INDEX, 4, 4, torch.ones(1)), ["indexer_fp8", "[1]"]),
    "tile_width": (lambda: index_fp8_layout(40, tile=(16, 16)), ["40", "16"]),
    "variant": (lambda: fp8_ds_mla_layout(512, 64, "e5m2"), ["e5m2", "e4m3fnuz"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_storages_that_do_not_fit_are_refused_with_both_figures(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises((hal.LayoutError, ValueError)) as error:
        make()
    assert isinstance(error.value, hal.HalError)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_cache_can_be_copied(name: str) -> None:
    cache = make_cache(LAYOUTS[name])
    other = copy.deepcopy(cache)
    for part, wanted in zip(
        reference.gather_rows(other, torch.arange(9)), reference.gather_rows(cache, torch.arange(9)), strict=True
    ):
        assert torch.equal(part, wanted)


def test_a_lone_page_may_have_any_stride() -> None:
    assert KVCache(storage(1, 64, 584), COMPRESSED, 64, 64).num_pages == 1
