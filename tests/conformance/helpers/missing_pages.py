"""Tables that name no page of the cache for some of a request's keys: those keys are nobody's, and nothing is read there."""

from __future__ import annotations

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import CompressedBatch, KVCache, PagedBatch, Segment
from hal.common.contract.compressor import Compressor
from hal.common.contract.layouts import Layout, attention_layout, index_layout, latent_layout, state_layout
from hal.common.contract.masking import CAUSAL, Masking
from hal.common.contract.parallel import Parallel
from hal.testing import reference
from hal.testing.cases import MIXED
from hal.testing.compare import expect_close
from hal.testing.reference.softmax import attend_keys, empty_result, visible_keys
from hal.testing.storage import build_cache, make_generator, paged_batch, poisoned_cache, random_tensor

PAGE, DTYPE, SCALE = 16, "float32", 0.3
MASKS = {"causal": CAUSAL, "window": Masking(window=20), "chunk": Masking(chunk=24)}
NOTHING = {"minus_one": -1, "lowest": -(2**31), "one_too_many": None, "highest": 2**31 - 1}


def lose_pages(cache: KVCache, table: torch.Tensor, block: int | None) -> list[set[int]]:
    """Take every other page from the table, by request; their contents become NaN. The positions that are gone."""
    lost = []
    for row in table:
        columns = range(0, len(row), 2)
        for column in columns:
            if 0 <= int(row[column]) < cache.num_pages:
                cache.storage[int(row[column])] = torch.nan
            row[column] = cache.num_pages if block is None else block
        lost.append({position for column in columns for position in range(column * PAGE, (column + 1) * PAGE)})
    return lost


def check_attention(backend: Backend, layout: str, mask: Masking, block: int | None) -> None:
    """paged_attention over what is left."""
    generator = make_generator(f"{layout}{mask}{block}")
    kind = attention_layout(2, 32, 32, DTYPE) if layout == "kv" else latent_layout(32, 16, DTYPE)
    cache, table = build_cache(kind, MIXED.seq_lens, PAGE, generator)
    q = random_tensor(generator, MIXED.num_tokens, 4, 32 if layout == "kv" else 48, dtype=DTYPE)
    whole = [reference.paged.read_keys(cache, row.tolist(), n) for row, n in zip(table, MIXED.seq_lens, strict=True)]
    lost = lose_pages(cache, table, block)
    out, lse = backend.paged_attention(q, cache, paged_batch(MIXED, table), softmax_scale=SCALE, need_lse=True, masking=mask)
    expected, expected_lse = empty_result(q.shape[0], 4, 32)
    for token, (request, position) in enumerate(MIXED.positions):
        keys, values = whole[request]
        seen = [key for key in visible_keys(position, MIXED.seq_lens[request], mask) if key not in lost[request]]
        expected[token], expected_lse[token] = attend_keys(q[token], keys[seen], values[seen], softmax_scale=SCALE)
    expect_close(out, expected, DTYPE, "out")
    expect_close(lse, expected_lse, DTYPE, "lse")


def check_rows(backend: Backend, layout: Layout, stranger: int | None) -> None:
    """sparse_mla and gather_cache over lists with numbers among them, and after them, that are no row of the cache's."""
    generator = make_generator(f"{layout.name}{stranger}")
    cache, table = build_cache(layout, [5 * PAGE], PAGE, generator)
    stranger = cache.num_pages * PAGE if stranger is None else stranger
    there, tokens, width = torch.tensor([int(table[0, key // PAGE]) * PAGE + key % PAGE for key in (0, 17, 70)]), 3, 8
    rows = torch.full((tokens, width), stranger, dtype=torch.int32)
    rows[:, 1:-1:2] = there.int()
    # More than the list is long, one that ends behind a stranger, and none.
    valid = torch.tensor([width + 3, 3, -2], dtype=torch.int32)
    keys = torch.cat(reference.gather_rows(cache, there), dim=1)[:, None]
    q = random_tensor(generator, tokens, 4, keys.shape[2], dtype=DTYPE)
    segments = [Segment(cache, rows, valid), Segment(cache, torch.full_like(rows, stranger), torch.full_like(valid, width))]
    out, lse = backend.sparse_mla(q, segments, kv_lora_rank=layout.widths[0], softmax_scale=SCALE, need_lse=True)
    expected, expected_lse = empty_result(tokens, 4, layout.widths[0])
    for token, seen in enumerate((keys[:3], keys[:1])):
        expected[token], expected_lse[token] = attend_keys(q[token], seen, seen[..., : layout.widths[0]], softmax_scale=SCALE)
    expect_close(out, expected, DTYPE, "out")
    expect_close(lse, expected_lse, DTYPE, "lse")
    for part in backend.gather_cache(cache, rows[0]):
        assert not part[::2].any(), "a row that is none reads as zeros"
        assert part[1:-1:2].any()


def check_compressing(backend: Backend, block: int | None) -> None:
    """compress_states makes the first entry of a page of its own group alone, where the page of the group before is lost."""
    generator, width, ratio = make_generator(f"compress{block}"), 16, 8
    states, table = build_cache(state_layout(2 * width, DTYPE), [PAGE + ratio], PAGE, generator)
    entries = poisoned_cache(latent_layout(width, 0, DTYPE), states.num_pages, PAGE // ratio)
    first = int(table[0, 1]) * PAGE
    values, scores = states.rows[first : first + ratio - 1].clone().chunk(2, dim=1)
    lose_pages(states, table, block)
    own = Compressor(
        kv=random_tensor(generator, 1, 2 * width, dtype=DTYPE),
        score=random_tensor(generator, 1, 2 * width, dtype=DTYPE),
        position_bias=torch.zeros(ratio, 2 * width),
    )
    batch = CompressedBatch(
        state_slots=torch.tensor([first + ratio - 1]),
        entry_slots=torch.tensor([first // ratio]),
        query_start_loc=torch.tensor([0, 1]).int(),
        req_id=torch.tensor([0]).int(),
        positions=torch.tensor([PAGE + ratio - 1]),
        block_table=table,
    )
    backend.compress_states(own, states, entries, batch, ratio=ratio)
    weights = torch.cat([scores, own.score])[:, width:].double().softmax(0)
    entry = (weights * torch.cat([values, own.kv])[:, width:].double()).sum(0)
    expect_close(entries.rows[first // ratio], entry, DTYPE, "entry")


def check_choice(backend: Backend, block: int | None) -> None:
    """index_scores give -inf there, and rows_from_topk no row."""
    generator = make_generator(f"index{block}")
    cache, table = build_cache(index_layout(32, DTYPE), MIXED.seq_lens, PAGE, generator)
    iq = random_tensor(generator, MIXED.num_tokens, 4, 32, dtype=DTYPE)
    weights = random_tensor(generator, MIXED.num_tokens, 4, dtype="float32")
    expected = reference.index_scores(iq, weights, cache, paged_batch(MIXED, table))
    lost = lose_pages(cache, table, block)
    for token, (request, _) in enumerate(MIXED.positions):
        expected[token, [key for key in lost[request] if key < expected.shape[1]]] = -torch.inf
    batch: PagedBatch = paged_batch(MIXED, table)
    expect_close(backend.index_scores(iq, weights, cache, batch), expected, DTYPE, "scores")
    if block is None or block > 0:
        return
    ids = torch.arange(64, dtype=torch.int32).expand(MIXED.num_tokens, -1).contiguous()
    requests = torch.tensor([request for request, _ in MIXED.positions], dtype=torch.int32)
    rows, valid = backend.rows_from_topk(ids, requests, table, batch.seq_lens, block_size=PAGE, parallel=Parallel())
    for token, (request, _) in enumerate(MIXED.positions):
        there = [key for key in range(min(64, MIXED.seq_lens[request])) if key not in lost[request]]
        wanted = [int(table[request, key // PAGE]) * PAGE + key % PAGE for key in there]
        assert rows[token].tolist() == wanted + [-1] * (64 - len(wanted))
        assert int(valid[token]) == len(wanted)
