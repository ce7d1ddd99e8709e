"""Cases of what a query may not see: NaN and infinities there leave its result what it is.

Of a batch's queries some are observed. Whatever none of them sees is filled with NaN and infinities; what a call gives for
them is held to the reference. Not to the bits of clean memory: a tile may be done again by another kernel, whose compiler
sums in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache, Segment, VarlenBatch
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import Layout
from hal.common.contract.parallel import Parallel
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import start_loc
from hal.testing.compare import expect_close, expect_identical
from hal.testing.storage import build_cache, copy_cache, make_generator, paged_batch, random_tensor

from . import unseen_states, unseen_writes
from .layouts import LATENTS, declared_index_layouts, declared_layouts, heads_layout, keys_layout, on_device, rows_layout
from .placement import move_tensors, place_of
from .sight import BATCH, LATER, UNUSED, Check, Sight, range_of, rows_of, sights, spoil_rows, spoil_tensor
from .sparse import random_topk, request_ids

Result = tuple[torch.Tensor, torch.Tensor | None]


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case that the declaration calls for."""
    for call, words, check in _checks(capabilities, sizes):
        name = describe(call, words, "unseen")
        yield Case(call=call, id=name, check=partial(check, name))


def _checks(capabilities: Capabilities, sizes: Sizes) -> Iterator[tuple[str, str, Check]]:
    seen = tuple(sights(capabilities))
    for layout in declared_layouts(capabilities, "attention", "mla"):
        for dtype in sizes.uncrossed.dtypes:
            yield "paged_attention", describe(layout, dtype, LATER.name), partial(_check_paged, layout, dtype, LATER, sizes)
        for sight in (UNUSED, *seen):
            words = describe(layout, sizes.dtype, sight.name)
            yield "paged_attention", words, partial(_check_paged, layout, sizes.dtype, sight, sizes)
    for sight in (LATER, *(one for one in seen if not one.ranges)):
        yield "varlen_attention", sight.name, partial(_check_varlen, sight, False, sizes)
    if capabilities.masked_varlen:
        yield "varlen_attention", "unselected_keys", partial(_check_varlen, LATER, True, sizes)
    for layout in declared_layouts(capabilities, "sparse_mla", "compressed"):
        yield "sparse_mla", describe(layout, "unlisted_rows"), partial(_check_sparse, layout, sizes)
    for layout in declared_index_layouts(capabilities):
        yield "index_scores", describe(layout, LATER.name), partial(_check_scores, layout, sizes)
    for layout in declared_layouts(capabilities, *capabilities.families):
        yield "gather_cache", describe(layout, "other_rows"), partial(_check_gather, layout, sizes)
    yield from unseen_writes.checks(capabilities, sizes)
    yield from unseen_states.checks(capabilities, sizes)


def _check_paged(layout: str, dtype: str, sight: Sight, sizes: Sizes, name: str, backend: Backend) -> None:
    generator, where = make_generator(name), place_of(backend)
    kind = on_device(_layout(layout, dtype, sizes), backend)
    cache, table = build_cache(kind, sight.batch.seq_lens, sizes.block_size, generator)
    heads, width = (sizes.latent_heads[0], sum(kind.widths)) if layout in LATENTS else (sizes.heads[0][0], kind.parts[0][1])
    q = random_tensor(generator, sight.batch.num_tokens, heads, width, dtype=dtype)
    batch = paged_batch(sight.batch, table)
    if sight.ranges:
        ends = torch.tensor([range_of(position) for _, position in sight.batch.positions], dtype=torch.int32)
        batch = replace(batch, key_starts=ends[:, 0].contiguous(), key_stops=ends[:, 1].contiguous())
    expected = reference.paged_attention(q, cache, batch, softmax_scale=0.3, masking=sight.masking)

    def call(given: KVCache) -> Result:
        return backend.paged_attention(
            q.to(where),
            copy_cache(given, where),
            move_tensors(batch, where),
            softmax_scale=0.3,
            masking=sight.masking,
            need_lse=_gives_lse(backend),
        )

    spoilt = spoil_rows(cache, rows_of(cache, table, sight.seen()), generator)
    _compare(call(spoilt), expected, sight.observed())


def _check_varlen(sight: Sight, selects: bool, sizes: Sizes, name: str, backend: Backend) -> None:
    generator, where = make_generator(name), place_of(backend)
    (heads, kv_heads), widths = sizes.heads[0], sizes.widths[0]
    q = random_tensor(generator, BATCH.num_tokens, heads, widths[0], dtype=sizes.dtype)
    k, v = (random_tensor(generator, sum(BATCH.seq_lens), kv_heads, width, dtype=sizes.dtype) for width in widths)
    starts, selected, step = start_loc(BATCH.seq_lens), None, 1
    if selects:
        # Every query selects the even keys alone.
        step, selected = 2, torch.arange(0, BATCH.max_seq_len, 2, dtype=torch.int32).repeat(BATCH.num_tokens, 1)
    seen = {
        first + position
        for first, positions in zip(starts.tolist(), sight.seen(), strict=False)
        for position in positions
        if position % step == 0
    }
    rows = [row for row in range(k.shape[0]) if row not in seen]
    batch = VarlenBatch(
        q_start_loc=BATCH.query_start_loc,
        k_start_loc=starts,
        max_query_len=BATCH.max_query_len,
        max_seq_len=BATCH.max_seq_len,
        selected=selected,
    )
    expected = reference.varlen_attention(q, k, v, batch, softmax_scale=0.3, masking=sight.masking)

    def call(k: torch.Tensor, v: torch.Tensor) -> Result:
        return backend.varlen_attention(
            q.to(where),
            k.to(where),
            v.to(where),
            move_tensors(batch, where),
            softmax_scale=0.3,
            masking=sight.masking,
            need_lse=_gives_lse(backend),
        )

    found = call(spoil_tensor(k, rows, generator), spoil_tensor(v, rows, generator))
    _compare(found, expected, sight.observed())


def _check_sparse(layout: str, sizes: Sizes, name: str, backend: Backend) -> None:
    """Every row is spoilt that the one observed query does not list."""
    generator, where = make_generator(name), place_of(backend)
    kind = on_device(_layout(layout, sizes.dtype, sizes), backend)
    lora = sum(kind.widths) if layout == "compressed" else kind.widths[0]
    q = random_tensor(generator, BATCH.num_tokens, sizes.latent_heads[0], sum(kind.widths), dtype=sizes.dtype)
    cache, table = build_cache(kind, BATCH.seq_lens, sizes.block_size, generator)
    topk, lens = random_topk(BATCH, sizes.topk_widths[0], generator), torch.tensor(BATCH.seq_lens, dtype=torch.int32)
    rows, valid = reference.rows_from_topk(
        topk,
        request_ids(BATCH),
        table,
        lens,
        block_size=cache.block_size,
        rows_per_page=cache.page_stride,
        parallel=Parallel(),
    )
    expected = reference.sparse_mla(q, [Segment(cache, rows, valid)], kv_lora_rank=lora, softmax_scale=0.2)
    observed = BATCH.query_lens[0] - 1

    def call(given: KVCache) -> Result:
        segment = Segment(copy_cache(given, where), rows.to(where), valid.to(where))
        return backend.sparse_mla(q.to(where), [segment], kv_lora_rank=lora, softmax_scale=0.2, need_lse=_gives_lse(backend))

    # Behind a list stand rows of -1, as rows_from_topk gives them: libraries need not take the list's length beside it.
    spoilt = spoil_rows(cache, rows[observed], generator)
    _compare(call(spoilt), expected, [observed])


def _check_scores(layout: str, sizes: Sizes, name: str, backend: Backend) -> None:
    generator, where = make_generator(name), place_of(backend)
    heads, head_dim = sizes.profile.index
    kind = on_device(keys_layout(layout, head_dim, sizes.dtype), backend)
    cache, table = build_cache(kind, BATCH.seq_lens, sizes.block_size, generator)
    iq = random_tensor(generator, BATCH.num_tokens, heads, head_dim, dtype=sizes.dtype, scale=head_dim**-0.5)
    weights = random_tensor(generator, BATCH.num_tokens, heads, dtype="float32")
    batch = paged_batch(BATCH, table)
    expected = reference.index_scores(iq, weights, cache, batch)

    def call(given: KVCache) -> Result:
        return backend.index_scores(iq.to(where), weights.to(where), copy_cache(given, where), move_tensors(batch, where)), None

    spoilt = spoil_rows(cache, rows_of(cache, table, LATER.seen()), generator)
    _compare(call(spoilt), (expected, expected), LATER.observed())


def _check_gather(layout: str, sizes: Sizes, name: str, backend: Backend) -> None:
    generator, where = make_generator(name), place_of(backend)
    cache, table = build_cache(
        on_device(_layout(layout, sizes.dtype, sizes), backend), BATCH.seq_lens, sizes.block_size, generator
    )
    wanted = rows_of(cache, table, [range(0, length, 3) for length in BATCH.seq_lens])
    spoilt = spoil_rows(cache, wanted, generator)
    rows = torch.cat([wanted, torch.tensor([-1])]).int().to(where)
    found, clean = (backend.gather_cache(copy_cache(given, where), rows) for given in (spoilt, cache))
    for number, (part, same) in enumerate(zip(found, clean, strict=True)):
        expect_identical(part, same, f"part {number} of rows between NaN and infinities")


def _compare(found: Result, expected: tuple[torch.Tensor, torch.Tensor], observed: Sequence[int]) -> None:
    for what, part, wanted in zip(("out", "lse"), found, expected, strict=True):
        if part is not None:
            expect_close(part[observed], wanted[observed], part.dtype, f"{what} of queries that see no NaN and no infinity")


def _layout(name: str, dtype: str, sizes: Sizes) -> Layout:
    if name in ("kv", "kv_fp8"):
        return heads_layout(name, sizes.heads[0][1], sizes.widths[0], dtype)
    return rows_layout(name, sizes.profile.latents[0], dtype)


def _gives_lse(backend: Backend) -> bool:
    return backend.capabilities is not None and backend.capabilities.lse
