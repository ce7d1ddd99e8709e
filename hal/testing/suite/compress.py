"""Cases of compress_states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import CompressedBatch, KVCache
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.compressor import Compressor
from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts import Layout, index_layout, latent_layout, state_layout
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import BATCHES, DECODE, MIXED, BatchCase, page_boundaries
from hal.testing.compare import expect, expect_close, expect_error, expect_identical
from hal.testing.storage import (
    STRIDED,
    TIGHT,
    StorageCase,
    copy_cache,
    make_generator,
    poisoned_cache,
    random_tensor,
    shuffle_pages,
    table_tensor,
)

from .placement import move_tensors, place_of, spread_rows

WIDTH = 16
ROPE = 6
LONG = BatchCase(id="long", query_lens=(37, 1), seq_lens=(50, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressCase:
    """One step's tokens after an earlier context. is_index: entries are index keys, neither normalised nor rotated.

    keeps_all: a page keeps every token's state, else only as many of its last as an entry is made of, and one.
    frees_pages: the block table no longer names pages that no group of the step reaches back to.
    """

    batch: BatchCase
    dtype: str
    ratio: int = 4
    groups: int = 2
    block_size: int = 16
    storage: StorageCase = TIGHT
    is_index: bool = False
    keeps_all: bool = False
    frees_pages: bool = False
    spreads_rows: bool = False

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        words = (
            "index_keys" * self.is_index,
            "every_state" * self.keeps_all,
            "freed_pages" * self.frees_pages,
            "strided_inputs" * self.spreads_rows,
        )
        kind = "overlapping" if self.groups == 2 else "apart"
        page = f"page{self.block_size}"
        return describe("compress_states", f"by{self.ratio}", kind, self.dtype, page, self.batch.id, self.storage.id, *words)

    @property
    def rows_kept(self) -> int:
        """States of one page."""
        return self.block_size if self.keeps_all else min(self.block_size, self.groups * self.ratio + 1)

    @property
    def entry_layout(self) -> Layout:
        """What an entry is written as."""
        return index_layout(WIDTH, self.dtype) if self.is_index else latent_layout(WIDTH, 0, self.dtype)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of compress_states."""
    del capabilities
    for spec in _specs(sizes):
        yield Case(call="compress_states", id=spec.id, check=partial(check_compress, spec))
    for note, change in (
        ("kv_of_another_width", "kv"),
        ("bias_of_another_ratio", "position_bias"),
        ("one_of_cos_and_sin", "sin"),
    ):
        check = partial(check_refusal, sizes.dtype, change)
        yield Case(call="compress_states", id=describe("compress_states", note), check=check)


def _specs(sizes: Sizes) -> Iterator[CompressCase]:
    usual = CompressCase(batch=MIXED, dtype=sizes.dtype)
    batches = [batch for batch in BATCHES if all(position >= 0 for _, position in batch.positions)]
    for groups in (2, 1):
        for batch in (*batches, page_boundaries(usual.block_size)):
            yield replace(usual, groups=groups, batch=batch)
        for ratio, block_size in ((4, 4), (8, 16), (16, 16), (3, 12), (1, 16)):
            yield replace(usual, groups=groups, ratio=ratio, block_size=block_size, batch=LONG)
        yield replace(usual, groups=groups, storage=STRIDED)
        yield replace(usual, groups=groups, is_index=True)
        yield replace(usual, groups=groups, keeps_all=True, batch=LONG)
        yield replace(usual, groups=groups, frees_pages=True)
        yield replace(usual, groups=groups, spreads_rows=True)
    for dtype in sizes.dtypes:
        if dtype != sizes.dtype:
            yield replace(usual, dtype=dtype, batch=DECODE)
            yield replace(usual, dtype=dtype, groups=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressStep:
    """A case's call: what it is given, and each request's pages."""

    compressor: Compressor
    states: KVCache
    entries: KVCache
    batch: CompressedBatch
    tables: list[list[int]]


def make_step(case: CompressCase, generator: torch.Generator) -> CompressStep:
    """Random tokens after random states, every row that is nobody's NaN."""
    tables, num_pages = shuffle_pages(generator, case.batch.seq_lens, case.block_size)
    states = poisoned_cache(state_layout(case.groups * WIDTH, case.dtype), num_pages, case.rows_kept, case.storage)
    contexts = [seq - query for query, seq in zip(case.batch.query_lens, case.batch.seq_lens, strict=True)]
    _fill_states(case, states, tables, contexts, generator)
    entries = poisoned_cache(case.entry_layout, num_pages, case.block_size // case.ratio, case.storage)
    slots, entry_slots = _slots(case, tables)
    if case.frees_pages:
        _free_pages(case, tables, contexts)
    padding = [(0, 0)] * case.batch.padded_tokens
    requests, positions = zip(*case.batch.positions, *padding, strict=True) if case.batch.num_tokens else ((), ())
    batch = CompressedBatch(
        state_slots=slots,
        entry_slots=entry_slots,
        query_start_loc=case.batch.query_start_loc,
        req_id=torch.tensor(requests, dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int64),
        block_table=table_tensor(tables),
    )
    return CompressStep(compressor=make_compressor(case, generator), states=states, entries=entries, batch=batch, tables=tables)


def compress_on(backend: Backend, case: CompressCase, step: CompressStep) -> tuple[KVCache, KVCache]:
    """The states and entries that a backend's call leaves, in memory of their own."""
    device = place_of(backend)
    states, entries = copy_cache(step.states, device), copy_cache(step.entries, device)
    moved = _move(step.compressor, device, case.spreads_rows)
    backend.compress_states(moved, states, entries, move_tensors(step.batch, device), ratio=case.ratio)
    return states, entries


def check_compress(case: CompressCase, backend: Backend) -> None:
    """Raise ConformanceError unless states and entries are those of the definition, and no other row of either cache changed."""
    step = make_step(case, make_generator(case.id))
    states, entries = compress_on(backend, case, step)
    reference.compress_states(step.compressor, step.states, step.entries, step.batch, ratio=case.ratio)
    _expect_rows(states, step.states, "float32", "states")
    _expect_rows(entries, step.entries, case.dtype, "entries")


def check_refusal(dtype: str, field: str, backend: Backend) -> None:
    """Raise ConformanceError unless a compressor that contradicts itself is a LayoutError, and nothing is written."""
    case, where = CompressCase(batch=DECODE, dtype=dtype), place_of(backend)
    compressor = make_compressor(case, make_generator(field))
    wrong = {
        "kv": replace(compressor, kv=compressor.kv[:, 1:]),
        "position_bias": replace(compressor, position_bias=compressor.position_bias[1:]),
        "sin": replace(compressor, sin=None),
    }[field]
    states = copy_cache(poisoned_cache(state_layout(2 * WIDTH, dtype), 2, 16), where)
    entries = copy_cache(poisoned_cache(case.entry_layout, 2, 4), where)
    before = states.rows.clone(), entries.rows.clone()
    tokens = DECODE.num_tokens
    slots = torch.arange(3, 3 + tokens, device=where)
    batch = CompressedBatch(
        state_slots=slots,
        entry_slots=slots // 4,
        query_start_loc=DECODE.query_start_loc.to(where),
        req_id=torch.zeros(tokens, dtype=torch.int32, device=where),
        positions=slots,
        block_table=torch.zeros(1, 1, dtype=torch.int32, device=where),
    )
    given = _move(wrong, where, spreads_rows=False)
    expect_error(
        (LayoutError,),
        f"another {field}",
        lambda: backend.compress_states(given, states, entries, batch, ratio=case.ratio),
    )
    expect_identical(states.rows, before[0], "states after a refused call")
    expect_identical(entries.rows, before[1], "entries after a refused call")


def make_compressor(case: CompressCase, generator: torch.Generator) -> Compressor:
    """Random products of a case's tokens."""
    tokens, wide = case.batch.num_tokens, case.groups * WIDTH
    angles = torch.rand(tokens, ROPE // 2, generator=generator) * 6
    return Compressor(
        kv=random_tensor(generator, tokens, wide, dtype=case.dtype),
        score=random_tensor(generator, tokens, wide, dtype=case.dtype, scale=2.0),
        position_bias=random_tensor(generator, case.ratio, wide, dtype="float32"),
        norm_weight=None if case.is_index else random_tensor(generator, WIDTH, dtype="float32"),
        eps=1e-3,
        cos=None if case.is_index else angles.cos(),
        sin=None if case.is_index else angles.sin(),
    )


def _fill_states(
    case: CompressCase, states: KVCache, tables: list[list[int]], contexts: list[int], generator: torch.Generator
) -> None:
    """Random states of each request's earlier tokens; of a page's only the last are left."""
    for table, context in zip(tables, contexts, strict=True):
        for position in range(context):
            page, offset = divmod(position, case.block_size)
            row = random_tensor(generator, states.layout.width, dtype=states.layout.dtype)
            states.storage[table[page], offset % case.rows_kept] = row


def _slots(case: CompressCase, tables: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each token's state goes, -1 where a later token of the step takes its row, and the entry that it closes."""
    kept, ratio, size = case.rows_kept, case.ratio, case.block_size
    slots, entry_slots = [], []
    for request, position in case.batch.positions:
        page, offset = divmod(position, size)
        last = min((page + 1) * size, case.batch.seq_lens[request]) - 1
        slots.append(tables[request][page] * kept + offset % kept if position + kept > last else -1)
        closes = (position + 1) % ratio == 0
        entry_slots.append(tables[request][page] * (size // ratio) + offset // ratio if closes else -1)
    padding = [-1] * case.batch.padded_tokens
    return torch.tensor([*slots, *padding], dtype=torch.int64), torch.tensor([*entry_slots, *padding], dtype=torch.int64)


def _free_pages(case: CompressCase, tables: list[list[int]], contexts: list[int]) -> None:
    for table, context in zip(tables, contexts, strict=True):
        reach = max(0, context - case.groups * case.ratio + 1)
        table[: reach // case.block_size] = [-1] * (reach // case.block_size)


def _move(compressor: Compressor, where: str, spreads_rows: bool) -> Compressor:
    tensors = {
        name: tensor.to(where)
        for name in ("kv", "score", "position_bias", "norm_weight", "cos", "sin")
        if (tensor := getattr(compressor, name)) is not None
    }
    if spreads_rows:
        tensors |= {name: spread_rows(tensors[name]) for name in ("kv", "score", "cos", "sin")}
    return Compressor(eps=compressor.eps, **tensors)


def _expect_rows(actual: KVCache, expected: KVCache, dtype: str, what: str) -> None:
    """The same rows written, to the tolerance of a dtype, and NaN wherever the expected cache has it."""
    found, wanted = actual.rows.cpu(), expected.rows
    expect(
        bool((found.isnan() == wanted.isnan()).all()), f"{what} were written where they should not be, or not where they should"
    )
    expect_close(found.nan_to_num(), wanted.nan_to_num(), dtype, what)
