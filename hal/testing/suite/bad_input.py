"""Cases of input that contradicts itself in what a host can see: a typed error, and nothing written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache, Segment
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.errors import BackendError, BatchError, LayoutError
from hal.common.contract.parallel import Parallel
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import DECODE
from hal.testing.compare import expect_error, expect_identical
from hal.testing.storage import build_cache, copy_cache, make_generator, paged_batch, poisoned_cache, stored_elements, torch_dtype

from .layouts import declared_layouts, on_device, sample_layout
from .placement import place_of

REFUSALS = (BatchError, LayoutError, BackendError)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of bad input that the declaration calls for."""
    names = declared_layouts(capabilities, *capabilities.kv_layouts)
    for name in names:
        yield _case("write_cache", f"{name}-parts_of_other_shapes", check_write_shapes, name, sizes)
        yield _case("write_cache", f"{name}-too_few_slots", check_write_slots, name, sizes)
    for name in declared_layouts(capabilities, "attention", "mla"):
        yield _case("paged_attention", f"{name}-q_of_another_width", check_paged_width, name, sizes)
    for name in declared_layouts(capabilities, "sparse_mla", "compressed"):
        yield _case("sparse_mla", f"{name}-no_segments", check_no_segments, name, sizes)
        yield _case("sparse_mla", f"{name}-q_of_another_width", check_sparse_width, name, sizes)
        yield _case("sparse_mla", f"{name}-other_token_counts", check_sparse_tokens, name, sizes)
    if "paged_attention" in capabilities.inner_sinks:
        for name in declared_layouts(capabilities, "attention"):
            yield _case("paged_attention", f"{name}-sink_of_other_heads", check_paged_sink, name, sizes)
    yield Case(call="select_topk", id="select_topk-k_above_width", check=check_topk_width)
    if capabilities.dcp and sizes.block_size > 1:
        check = partial(check_interleave, sizes.block_size)
        yield Case(call="rows_from_topk", id="rows_from_topk-interleave_across_pages", check=check)


def _case(call: str, note: str, check: Callable[[str, Sizes, Backend], None], name: str, sizes: Sizes) -> Case:
    return Case(call=call, id=describe(call, note), check=partial(check, name, sizes))


def check_write_shapes(name: str, sizes: Sizes, backend: Backend) -> None:
    """Parts that the layout does not hold are a LayoutError."""
    where = place_of(backend)
    cache = _poisoned(name, sizes, backend)
    before = stored_elements(cache).clone()
    dtype = torch_dtype(sizes.dtype)
    parts = [torch.zeros(1, *part[:-1], part[-1] + 1, dtype=dtype, device=where) for part in cache.layout.parts]
    slot = torch.zeros(1, dtype=torch.int64, device=where)
    expect_error((LayoutError,), "parts one element too wide", lambda: backend.write_cache(cache, slot, *parts))
    expect_error((LayoutError,), "a part too few", lambda: backend.write_cache(cache, slot, *parts[1:]))
    expect_identical(stored_elements(cache), before, "storage after a refused write")


def check_write_slots(name: str, sizes: Sizes, backend: Backend) -> None:
    """As many slots as tokens."""
    where = place_of(backend)
    cache = _poisoned(name, sizes, backend)
    before = stored_elements(cache).clone()
    parts = [torch.zeros(3, *part, dtype=torch_dtype(sizes.dtype), device=where) for part in cache.layout.parts]
    slots = torch.zeros(2, dtype=torch.int64, device=where)
    expect_error(REFUSALS, "2 slots for 3 tokens", lambda: backend.write_cache(cache, slots, *parts))
    expect_identical(stored_elements(cache), before, "storage after a refused write")


def check_paged_width(name: str, sizes: Sizes, backend: Backend) -> None:
    """Queries as wide as the keys."""
    where = place_of(backend)
    layout = on_device(sample_layout(name, sizes.dtype, sizes.profile), backend)
    cache, table = build_cache(layout, DECODE.seq_lens, sizes.block_size, make_generator(name))
    heads, width = layout.parts[0] if name in ("kv", "kv_fp8") else (1, sum(layout.widths))
    q = torch.zeros(DECODE.num_tokens, heads, width + 1, dtype=torch_dtype(sizes.dtype), device=where)
    batch = paged_batch(DECODE, table, where)
    given = copy_cache(cache, where)
    what = f"q {width + 1} wide on keys {width} wide"
    expect_error(REFUSALS, what, lambda: backend.paged_attention(q, given, batch, softmax_scale=1.0))


def check_paged_sink(name: str, sizes: Sizes, backend: Backend) -> None:
    """A sink for each of the queries' heads."""
    where = place_of(backend)
    cache, table = build_cache(
        on_device(sample_layout(name, sizes.dtype, sizes.profile), backend),
        DECODE.seq_lens,
        sizes.block_size,
        make_generator(name),
    )
    heads, width = cache.layout.parts[0]
    q = torch.zeros(DECODE.num_tokens, heads, width, dtype=torch_dtype(sizes.dtype), device=where)
    batch, given = paged_batch(DECODE, table, where), copy_cache(cache, where)
    for what, sink in (
        ("a sink of one head more", torch.zeros(heads + 1)),
        ("a sink of whole numbers", torch.zeros(heads).int()),
    ):
        moved = sink.to(where)
        expect_error(REFUSALS, what, lambda moved=moved: backend.paged_attention(q, given, batch, softmax_scale=1.0, sink=moved))  # type: ignore[misc]


def check_no_segments(name: str, sizes: Sizes, backend: Backend) -> None:
    """At least one segment."""
    del name
    q = torch.zeros(2, 1, 8, dtype=torch_dtype(sizes.dtype), device=place_of(backend))
    expect_error(REFUSALS, "no segment", lambda: backend.sparse_mla(q, [], kv_lora_rank=8, softmax_scale=1.0))


def check_sparse_width(name: str, sizes: Sizes, backend: Backend) -> None:
    """Queries as wide as the rows."""
    _check_sparse(name, sizes, backend, "q one element too wide", q_width=1)


def check_sparse_tokens(name: str, sizes: Sizes, backend: Backend) -> None:
    """One list of rows per query."""
    _check_sparse(name, sizes, backend, "rows for 3 tokens, q for 2", tokens=1)


def _check_sparse(name: str, sizes: Sizes, backend: Backend, what: str, q_width: int = 0, tokens: int = 0) -> None:
    where = place_of(backend)
    cache = _poisoned(name, sizes, backend)
    widths = cache.layout.widths
    rows = torch.full((2 + tokens, sizes.topk_widths[0]), -1, dtype=torch.int32, device=where)
    segments = [Segment(cache, rows, torch.zeros(2 + tokens, dtype=torch.int32, device=where))]
    q = torch.zeros(2, 1, sum(widths) + q_width, dtype=torch_dtype(sizes.dtype), device=where)
    expect_error(REFUSALS, what, lambda: backend.sparse_mla(q, segments, kv_lora_rank=widths[0], softmax_scale=1.0))


def _poisoned(name: str, sizes: Sizes, backend: Backend) -> KVCache:
    layout = on_device(sample_layout(name, sizes.dtype, sizes.profile), backend)
    return copy_cache(poisoned_cache(layout, 2, sizes.block_size), place_of(backend))


def check_topk_width(backend: Backend) -> None:
    """A row holds at most its width."""
    where = place_of(backend)
    scores, lengths = torch.zeros(1, 200, device=where), torch.full((1,), 200, dtype=torch.int32, device=where)
    expect_error(REFUSALS, "k 129 in a row of width 128", lambda: backend.select_topk(scores, lengths, 129, 128))


def check_interleave(block_size: int, backend: Backend) -> None:
    """A DCP run does not reach across pages."""
    where = place_of(backend)
    ids = torch.zeros(1, 128, dtype=torch.int32, device=where)
    one = torch.ones(1, dtype=torch.int32, device=where)
    table = torch.zeros(1, 1, dtype=torch.int32, device=where)
    parallel = Parallel(dcp=2, interleave=block_size + 1)
    expect_error(
        REFUSALS,
        f"interleave {block_size + 1} with pages of {block_size}",
        lambda: backend.rows_from_topk(ids, one - 1, table, one, block_size=block_size, parallel=parallel),
    )
