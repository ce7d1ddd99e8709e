"""Pages that keep planes one after another, with padding behind their tokens: only a token's number is a row."""

from __future__ import annotations

import pytest
import torch

from hal import kernels
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.layouts import Layout, compressed_layout, index_fp8_layout
from hal.testing import reference
from hal.testing.storage import StorageCase, make_generator, poisoned_cache, random_tensor

CPU = kernels("cpu")
PAGES, PAGE = 3, 16
COMPRESSED = compressed_layout(40, 8)
LAYOUTS = {"indexer_fp8": index_fp8_layout(32), "tiled": index_fp8_layout(32, tile=(16, 16)), "compressed": COMPRESSED}
STORAGES = {
    "tight": StorageCase(id="tight"),
    "padded": StorageCase(id="padded", extra_rows=5),
    "padded_apart": StorageCase(id="padded_apart", extra_rows=5, gap_rows=3),
}
both = pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)


def make_cache(layout: Layout, storage: StorageCase) -> tuple[KVCache, list[torch.Tensor]]:
    """A cache whose tokens are all written and whose other bytes are NaN, and what the tokens hold."""
    cache, tokens = poisoned_cache(layout, PAGES, PAGE, storage), PAGES * PAGE
    parts = [random_tensor(make_generator(layout.name), tokens, *part, dtype="float32") for part in layout.parts]
    reference.write_rows(cache, torch.arange(tokens), parts)
    held = cache.layout.unpack(cache.layout.pack(parts, cache.scale), cache.scale)
    return cache, list(held)


def numbers(cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Every number from below a cache's rows to past them, and the token that each is: -1 for none."""
    rows = torch.arange(-2, PAGES * cache.page_stride + 3)
    page, offset = rows // cache.page_stride, rows % cache.page_stride
    is_token = (rows >= 0) & (page < PAGES) & (offset < PAGE)
    return rows.to(torch.int32), torch.where(is_token, page * PAGE + offset, -1)


@both
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_no_token_reads_as_zeros(name: str, storage: StorageCase) -> None:
    cache, held = make_cache(LAYOUTS[name], storage)
    rows, tokens = numbers(cache)
    for part, right in zip(CPU.gather_cache(cache, rows), held, strict=True):
        wanted = torch.where((tokens >= 0)[:, None], right[tokens.clamp(min=0)].flatten(1), 0)
        assert torch.equal(part.flatten(1), wanted)
    strangers = rows[tokens < 0]
    assert not any(part.any() for part in CPU.gather_cache(cache, strangers))


@both
@pytest.mark.parametrize("stray", ["none", "padding", "past", "negative"])
def test_a_list_sees_tokens_alone(stray: str, storage: StorageCase) -> None:
    cache, (values, *rest) = make_cache(COMPRESSED, storage)
    keys = torch.cat([values, *rest], dim=1)
    q = random_tensor(make_generator(stray), 2, 3, keys.shape[1], dtype="float32")
    known = torch.tensor([[3, cache.page_stride + 15, 2 * cache.page_stride], [0, 15, cache.page_stride]], dtype=torch.int32)
    # In a tight page the number after the last token's is the next page's first.
    strays = {"none": 1, "padding": PAGE + 1, "past": PAGES * cache.page_stride, "negative": -1}
    added = torch.full((2, 1), strays[stray], dtype=torch.int32)
    rows = torch.cat([known[:, :2], added, known[:, 2:]], dim=1)
    page, offset = rows.long() // cache.page_stride, rows.long() % cache.page_stride
    is_token = (rows >= 0) & (page < PAGES) & (offset < PAGE)
    out, lse = CPU.sparse_mla(
        q,
        [Segment(cache, rows, torch.tensor([4, 3], dtype=torch.int32))],
        kv_lora_rank=values.shape[1],
        softmax_scale=0.3,
        need_lse=True,
    )
    assert lse is not None
    for token, count in enumerate((4, 3)):
        shown = (page * PAGE + offset)[token, :count][is_token[token, :count]]
        scores = q[token].double() @ keys[shown].double().T * 0.3
        torch.testing.assert_close(lse[token].double(), scores.logsumexp(1), rtol=1e-5, atol=1e-5)
        right = scores.softmax(1) @ values[shown].double()
        torch.testing.assert_close(out[token].double(), right, rtol=1e-4, atol=1e-5)


@both
@pytest.mark.parametrize("name", ["indexer_fp8", "tiled"])
@pytest.mark.parametrize(
    "table", [[1, 2], [2, 0], [2, -1], [-1, 0], [-1, -1], [1, PAGES], [1]], ids=lambda table: "_".join(map(str, table))
)
def test_scores_are_of_the_pages_that_the_table_names(table: list[int], name: str, storage: StorageCase) -> None:
    cache, (keys,) = make_cache(LAYOUTS[name], storage)
    length = PAGE + 7
    iq = random_tensor(make_generator("iq"), 2, 3, keys.shape[1], dtype="float32")
    weights = random_tensor(make_generator("weights"), 2, 3, dtype="float32")
    ints = [torch.tensor(given, dtype=torch.int32) for given in ([0, 2], [length], [table])]
    found = CPU.index_scores(iq, weights, cache, PagedBatch(*ints, 2, length))
    wanted = torch.full((2, length), -torch.inf)
    for token, position in enumerate((length - 2, length - 1)):
        for key in range(position + 1):
            column = key // PAGE
            if column < len(table) and 0 <= table[column] < PAGES:
                at = table[column] * PAGE + key % PAGE
                wanted[token, key] = ((iq[token] @ keys[at]).relu() * weights[token]).sum()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("name", LAYOUTS)
def test_slots_go_where_the_definition_puts_them(name: str, storage: StorageCase) -> None:
    cache = poisoned_cache(LAYOUTS[name], PAGES, PAGE, storage)
    other = poisoned_cache(LAYOUTS[name], PAGES, PAGE, storage)
    for slots in ([PAGES * PAGE - 1, 0, PAGE, -1], list(range(PAGE - 2, 2 * PAGE + 2))):
        given = torch.tensor(slots)
        parts = [random_tensor(make_generator(name), len(slots), *part, dtype="float32") for part in cache.layout.parts]
        CPU.write_cache(cache, given, *parts)
        reference.write_rows(other, given, parts)
        elements = [one.storage.untyped_storage() for one in (cache, other)]
        assert bytes(elements[0].tolist()) == bytes(elements[1].tolist())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_cache_without_pages_holds_no_token(name: str) -> None:
    layout = LAYOUTS[name]
    cache = KVCache(torch.zeros(0, PAGE, layout.width, dtype=torch.uint8), layout, PAGE, PAGE)
    rows = torch.tensor([-1, 0, PAGE], dtype=torch.int32)
    assert [part.shape[0] for part in CPU.gather_cache(cache, rows)] == [3] * len(layout.parts)
    assert not any(part.any() for part in CPU.gather_cache(cache, rows))
    if name != "compressed":
        ints = [torch.tensor(given, dtype=torch.int32) for given in ([0, 2], [5], [[0]])]
        scores = CPU.index_scores(torch.ones(2, 3, 32), torch.ones(2, 3), cache, PagedBatch(*ints, 2, 5))
        assert scores.isneginf().all()
