"""Cases of calls that must agree with each other: an indexer's whole path, and work that DCP ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import index_layout, latent_layout
from hal.common.contract.parallel import Parallel, local_length, local_position, owner
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import DECODE, MIXED, BatchCase
from hal.testing.compare import expect_close
from hal.testing.storage import (
    build_cache,
    copy_cache,
    make_generator,
    paged_batch,
    poisoned_cache,
    random_tensor,
    shuffle_pages,
    table_tensor,
)

from .layouts import declared_layouts
from .placement import place_of
from .sparse import random_topk, request_ids

LORA, ROPE, HEADS, SCALE = 32, 16, 4, 0.2


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Cases of several calls in a row that the declaration calls for; filed under the last attention call of the row."""
    is_sparse = "latent" in declared_layouts(capabilities, "sparse_mla")
    for block_size in sizes.block_sizes:
        page = f"page{block_size}"
        if is_sparse and "indexer" in capabilities.index_layouts:
            name = describe("sparse_mla", page, "all_keys_through_the_indexer")
            width = -(-max(MIXED.seq_lens) // capabilities.topk_multiple) * capabilities.topk_multiple
            yield Case(call="sparse_mla", id=name, check=partial(check_indexer, sizes.dtype, block_size, width, name))
        if not (capabilities.dcp and capabilities.lse):
            continue
        for ranks in (2, 3):
            parallel = Parallel(dcp=ranks, interleave=max(1, block_size // 4))
            where = partial(describe, page, f"{ranks}ranks")
            if is_sparse:
                name = describe("sparse_mla", where())
                check = partial(check_sparse_ranks, sizes.dtype, block_size, sizes.topk_widths[0], parallel, name)
                yield Case(call="sparse_mla", id=name, check=check)
            if "latent" in declared_layouts(capabilities, "mla"):
                name = describe("paged_attention", where())
                yield Case(
                    call="paged_attention",
                    id=name,
                    check=partial(check_paged_ranks, sizes.dtype, block_size, parallel, name),
                )


def check_indexer(dtype: str, block_size: int, width: int, name: str, backend: Backend) -> None:
    """A top-k as wide as the longest request makes sparse attention dense."""
    generator, where = make_generator(name), place_of(backend)
    batch = MIXED
    keys, key_table = build_cache(index_layout(32, dtype), batch.seq_lens, block_size, generator)
    cache, table = build_cache(latent_layout(LORA, ROPE, dtype), batch.seq_lens, block_size, generator)
    q = random_tensor(generator, batch.num_tokens, HEADS, LORA + ROPE, dtype=dtype)
    iq = random_tensor(generator, batch.num_tokens, 4, 32, dtype=dtype).to(where)
    weights = random_tensor(generator, batch.num_tokens, 4, dtype="float32").to(where)
    scores = backend.index_scores(iq, weights, copy_cache(keys, where), paged_batch(batch, key_table, where))
    lengths = torch.tensor([position + 1 for _, position in batch.positions], dtype=torch.int32, device=where)
    topk = backend.select_topk(scores, lengths, width, width)
    rows, valid = _find_rows(backend, topk, batch, table, cache, Parallel())
    segments = [Segment(copy_cache(cache, where), rows, valid)]
    out, _ = backend.sparse_mla(q.to(where), segments, kv_lora_rank=LORA, softmax_scale=SCALE)
    expected, _ = reference.paged_attention(q, cache, paged_batch(batch, table), softmax_scale=SCALE)
    expect_close(out, expected, dtype, "out of sparse attention over all keys")


def check_sparse_ranks(dtype: str, block_size: int, width: int, parallel: Parallel, name: str, backend: Backend) -> None:
    """Every rank attends to the chosen tokens that it stores; their merged results are the whole."""
    generator, where = make_generator(name), place_of(backend)
    cache, table = build_cache(latent_layout(LORA, ROPE, dtype), MIXED.seq_lens, block_size, generator)
    q = random_tensor(generator, MIXED.num_tokens, HEADS, LORA + ROPE, dtype=dtype)
    topk = random_topk(MIXED, width, generator)
    states = []
    for rank in _ranks(parallel):
        shard, shard_table = _shard(cache, table, MIXED, rank, generator)
        rows, valid = _find_rows(backend, topk.to(where), MIXED, shard_table, shard, rank)
        segments = [Segment(copy_cache(shard, where), rows, valid)]
        states.append(backend.sparse_mla(q.to(where), segments, kv_lora_rank=LORA, softmax_scale=SCALE, need_lse=True))
    lengths = torch.tensor(MIXED.seq_lens, dtype=torch.int32)
    rows, valid = reference.rows_from_topk(topk, request_ids(MIXED), table, lengths, block_size=block_size, parallel=Parallel())
    expected = reference.sparse_mla(q, [Segment(cache, rows, valid)], kv_lora_rank=LORA, softmax_scale=SCALE)
    _compare_merged(backend, states, expected, dtype)


def check_paged_ranks(dtype: str, block_size: int, parallel: Parallel, name: str, backend: Backend) -> None:
    """Decodes over every rank's share of the tokens, the empty shares included; their merged results are the whole."""
    generator, where = make_generator(name), place_of(backend)
    cache, table = build_cache(latent_layout(LORA, ROPE, dtype), DECODE.seq_lens, block_size, generator)
    q = random_tensor(generator, DECODE.num_tokens, HEADS, LORA + ROPE, dtype=dtype)
    states = []
    for rank in _ranks(parallel):
        shard, shard_table = _shard(cache, table, DECODE, rank, generator)
        lengths = tuple(local_length(length, rank) for length in DECODE.seq_lens)
        local = BatchCase(id="local", query_lens=DECODE.query_lens, seq_lens=lengths)
        batch: PagedBatch = paged_batch(local, shard_table, where)
        states.append(backend.paged_attention(q.to(where), copy_cache(shard, where), batch, softmax_scale=SCALE, need_lse=True))
    expected = reference.paged_attention(q, cache, paged_batch(DECODE, table), softmax_scale=SCALE)
    _compare_merged(backend, states, expected, dtype)


def _ranks(parallel: Parallel) -> list[Parallel]:
    return [Parallel(dcp=parallel.dcp, dcp_rank=rank, interleave=parallel.interleave) for rank in range(parallel.dcp)]


def _shard(
    cache: KVCache, table: torch.Tensor, batch: BatchCase, rank: Parallel, generator: torch.Generator
) -> tuple[KVCache, torch.Tensor]:
    """One rank's cache: its own pages, holding the tokens it owns."""
    lengths = [local_length(length, rank) for length in batch.seq_lens]
    tables, num_pages = shuffle_pages(generator, lengths, cache.block_size)
    shard = poisoned_cache(cache.layout, num_pages, cache.block_size)
    for request, length in enumerate(batch.seq_lens):
        for position in range(length):
            if owner(position, rank) != rank.dcp_rank:
                continue
            local = local_position(position, rank)
            page, offset = tables[request][local // cache.block_size], local % cache.block_size
            source = int(table[request, position // cache.block_size])
            shard.storage[page, offset] = cache.storage[source, position % cache.block_size]
    return shard, table_tensor(tables)


def _find_rows(
    backend: Backend, topk: torch.Tensor, batch: BatchCase, table: torch.Tensor, cache: KVCache, parallel: Parallel
) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor(batch.seq_lens, dtype=torch.int32, device=topk.device)
    ids, pages = request_ids(batch).to(topk.device), table.to(topk.device)
    return backend.rows_from_topk(topk, ids, pages, lengths, block_size=cache.block_size, parallel=parallel)


def _compare_merged(
    backend: Backend,
    states: list[tuple[torch.Tensor, torch.Tensor | None]],
    expected: tuple[torch.Tensor, torch.Tensor],
    dtype: str,
) -> None:
    out, lse = _with_lse(states[0])
    for state in states[1:]:
        out, lse = backend.merge_states(out, lse, *_with_lse(state))
    expect_close(out, expected[0], dtype, "merged out", roundings=len(states))
    expect_close(lse, expected[1], "float32", "merged lse")


def _with_lse(state: tuple[torch.Tensor, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = state
    if lse is None:
        raise ValueError("an LSE was asked for, and none came back")
    return out, lse
