"""One small call of each kind with every tensor that it can be given, for checks of how those may lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.compressor import Compressor
from hal.common.contract.layouts import UNQUANTISED, Layout, index_layout, latent_layout, state_layout
from hal.common.contract.parallel import Parallel
from hal.testing.arguments import Path
from hal.testing.case import Sizes
from hal.testing.cases import BatchCase, start_loc
from hal.testing.storage import build_cache, copy_cache, make_generator, paged_batch, poisoned_cache, random_tensor, torch_dtype

from .layouts import LATENTS, declared_index_layouts, declared_layouts, on_device, sample_layout
from .placement import place_of

# Every request has pages for LONGEST tokens, so that a table or lengths that repeat themselves still name pages that are there.
LONGEST = 24
# Few keys are one tile's, which keeps a call short where kernels are interpreted; the decodes have more, to be split and joined.
STEP = BatchCase(id="step", query_lens=(2, 1), seq_lens=(9, 6))
DECODES = BatchCase(id="decodes", query_lens=(1, 1), seq_lens=(21, 9))
CLOSING = BatchCase(id="closing", query_lens=(2, 5), seq_lens=(9, 12))
POOL, RATIO, ENTRY, ROPE = 4, 4, 16, 6
_NO_SLOTS: Mapping[Path, int] = dict.fromkeys((("slots",), ("batch", "state_slots"), ("batch", "entry_slots")), -1)
_FEW_ROWS: Mapping[Path, int] = {("segments", number, "valid"): 3 for number in range(2)}
_FEW_KEYS: Mapping[Path, int] = {("batch", "key_stops"): 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call. make(backend) gives its arguments, tensors dense and in memory of their own.

    written: the tensors that it writes. blank: what a tensor is filled with before it repeats itself, where it matters: two
    tokens must not be written to one slot, nor a query see keys or rows that are not there.
    """

    call: str
    note: str
    make: Callable[[Backend], dict[str, Any]]
    written: frozenset[Path] = frozenset()
    blank: Mapping[Path, int] = field(default_factory=dict)


def samples(capabilities: Capabilities, sizes: Sizes) -> Iterator[Sample]:
    """A call of every kind that the declaration calls for, with what is optional and without."""
    layouts = (*declared_layouts(capabilities, *capabilities.kv_layouts), *declared_index_layouts(capabilities))
    for name in layouts:
        written = frozenset({("cache", "storage")})
        yield Sample(call="write_cache", note=name, make=partial(_write, name, sizes), written=written, blank=_NO_SLOTS)
        yield Sample(call="gather_cache", note=name, make=partial(_gather, name, sizes))
    yield from _attending(capabilities, sizes)
    for name in declared_index_layouts(capabilities):
        for note, has_chunk, has_ranges in (("", False, False), ("chunk", True, False), ("key_ranges", False, True)):
            if capabilities.key_ranges or not has_ranges:
                make = partial(_score, name, sizes, has_chunk, has_ranges)
                yield Sample(call="index_scores", note=_join(name, note), make=make, blank=_FEW_KEYS)
    yield Sample(call="select_topk", note="", make=partial(_choose, sizes))
    if capabilities.max_index_pool > 1:
        yield Sample(call="expand_pools", note="", make=_expand)
    yield Sample(call="rows_from_topk", note="", make=partial(_rows, sizes))
    yield Sample(call="merge_states", note="", make=partial(_merge, sizes))
    yield Sample(call="apply_sink", note="", make=partial(_sink, sizes))
    caches = frozenset({("states", "storage"), ("entries", "storage")})
    for note, is_index in (("entries", False), ("index_keys", True)):
        make = partial(_compress, is_index, sizes.dtype)
        yield Sample(call="compress_states", note=note, make=make, written=caches, blank=_NO_SLOTS)


def _attending(capabilities: Capabilities, sizes: Sizes) -> Iterator[Sample]:
    out, has_lse = frozenset({("out",)}), capabilities.lse
    for name in declared_layouts(capabilities, "attention", "mla"):
        # Keys that are stored otherwise are read into the same kernels.
        batches = (STEP, DECODES) if name in UNQUANTISED else (STEP,)
        for batch in batches:
            make = partial(_paged, name, sizes, batch, False, has_lse)
            yield Sample(call="paged_attention", note=_join(name, batch.id), make=make, written=out)
        if capabilities.key_ranges and name in UNQUANTISED:
            make = partial(_paged, name, sizes, STEP, True, has_lse)
            note = _join(name, "key_ranges")
            yield Sample(call="paged_attention", note=note, make=make, written=out, blank=_FEW_KEYS)
    if "paged_attention" in capabilities.inner_sinks and "kv" in declared_layouts(capabilities, "attention"):
        make = partial(_with_sink, partial(_paged, "kv", sizes, DECODES, False, has_lse))
        yield Sample(call="paged_attention", note="kv-sink", make=make, written=out)
    if "sparse_mla" in capabilities.inner_sinks and "latent" in declared_layouts(capabilities, "sparse_mla"):
        make = partial(_with_sink, partial(_sparse, "latent", sizes, 2, has_lse))
        yield Sample(call="sparse_mla", note="latent-sink", make=make, written=out, blank=_FEW_ROWS)
    for selects in (False, True):
        if capabilities.masked_varlen or not selects:
            make = partial(_varlen, sizes, selects, has_lse)
            yield Sample(call="varlen_attention", note="selected" if selects else "", make=make, written=out)
    for name in declared_layouts(capabilities, "sparse_mla", "compressed"):
        # A second list needs an LSE to be merged by where a library takes one alone.
        lists = 2 if has_lse and name in UNQUANTISED else 1
        make = partial(_sparse, name, sizes, lists, has_lse)
        yield Sample(call="sparse_mla", note=name, make=make, written=out, blank=_FEW_ROWS)


def _join(*words: str) -> str:
    return "-".join(word for word in words if word)


def _layout(name: str, sizes: Sizes, backend: Backend) -> Layout:
    return on_device(sample_layout(name, sizes.dtype, sizes.profile), backend)


def _filled(name: str, sizes: Sizes, backend: Backend) -> tuple[KVCache, torch.Tensor]:
    """A cache of both requests, and their block table."""
    lengths = [LONGEST] * len(STEP.seq_lens)
    cache, table = build_cache(_layout(name, sizes, backend), lengths, _page(sizes), make_generator(name))
    return copy_cache(cache, place_of(backend)), table[:, : -(-LONGEST // _page(sizes))].contiguous()


def _page(sizes: Sizes) -> int:
    """The smallest page, so that a table has the most columns."""
    return min(sizes.block_sizes)


def _write(name: str, sizes: Sizes, backend: Backend) -> dict[str, Any]:
    where = place_of(backend)
    cache = copy_cache(poisoned_cache(_layout(name, sizes, backend), 3, sizes.block_size), where)
    last = 3 * sizes.block_size - 1
    slots = torch.tensor([last, -1, 0, last - 1])
    parts = tuple(random_tensor(make_generator(name), 4, *part, dtype=sizes.dtype).to(where) for part in cache.layout.parts)
    return {"cache": cache, "slots": slots.to(where), "parts": parts}


def _gather(name: str, sizes: Sizes, backend: Backend) -> dict[str, Any]:
    cache, table = _filled(name, sizes, backend)
    rows = table[:, 0] * cache.page_stride
    return {"cache": cache, "rows": torch.cat([rows, rows.new_full((1,), -1)]).to(place_of(backend))}


def _paged(name: str, sizes: Sizes, batch: BatchCase, has_ranges: bool, need_lse: bool, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator(name)
    cache, table = _filled(name, sizes, backend)
    layout, is_latent = cache.layout, name in LATENTS
    heads = sizes.latent_heads[0] if is_latent else sizes.heads[0][0]
    width, value = (sum(layout.widths), layout.widths[0]) if is_latent else (layout.parts[0][1], layout.parts[1][1])
    return {
        "q": random_tensor(generator, batch.num_tokens, heads, width, dtype=sizes.dtype).to(where),
        "cache": cache,
        "batch": _ranged(batch, table, where) if has_ranges else paged_batch(batch, table, where),
        "softmax_scale": 0.3,
        "need_lse": need_lse,
        "out": _nothing(batch.num_tokens, heads, value, sizes, where),
    }


def _ranged(batch: BatchCase, table: torch.Tensor, where: str) -> PagedBatch:
    plain = paged_batch(batch, table, where)
    positions = [position for _, position in batch.positions]
    starts = torch.tensor([position // 3 for position in positions], dtype=torch.int32)
    stops = torch.tensor([position + 1 for position in positions], dtype=torch.int32)
    fields = (plain.query_start_loc, plain.seq_lens, plain.block_table, plain.max_query_len, plain.max_seq_len)
    return PagedBatch(*fields, key_starts=starts.to(where), key_stops=stops.to(where))


def _varlen(sizes: Sizes, selects: bool, need_lse: bool, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator("varlen")
    (heads, kv_heads), (width, value) = sizes.heads[0], sizes.widths[-1]
    keys = sum(STEP.seq_lens)
    shapes = {"q": (STEP.num_tokens, heads, width), "k": (keys, kv_heads, width), "v": (keys, kv_heads, value)}
    arguments = {name: random_tensor(generator, *shape, dtype=sizes.dtype).to(where) for name, shape in shapes.items()}
    batch = VarlenBatch(
        q_start_loc=STEP.query_start_loc.to(where),
        k_start_loc=start_loc(STEP.seq_lens).to(where),
        max_query_len=STEP.max_query_len,
        # Starts that repeat themselves may make one request of all keys.
        max_seq_len=keys,
    )
    if selects:
        selected = torch.stack([torch.randperm(40, generator=generator)[:12] for _ in range(STEP.num_tokens)])
        first_key = torch.tensor([17, 2], dtype=torch.int32, device=where)
        batch = replace(batch, selected=selected.to(torch.int32).to(where), first_key=first_key)
    return {
        **arguments,
        "batch": batch,
        "softmax_scale": 0.3,
        "need_lse": need_lse,
        "out": _nothing(STEP.num_tokens, heads, value, sizes, where),
    }


def _nothing(tokens: int, heads: int, width: int, sizes: Sizes, where: str) -> torch.Tensor:
    return torch.full((tokens, heads, width), torch.nan, dtype=torch_dtype(sizes.dtype), device=where)


def _score(name: str, sizes: Sizes, has_chunk: bool, has_ranges: bool, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator(name)
    cache, table = _filled(name, sizes, backend)
    heads, width = sizes.profile.index
    chunk = IndexerChunk(token_start=1, token_stop=3, request_start=0, request_stop=2, max_seq_len=LONGEST)
    arguments = {
        "iq": random_tensor(generator, STEP.num_tokens, heads, width, dtype=sizes.dtype).to(where),
        "weights": random_tensor(generator, STEP.num_tokens, heads, dtype="float32").to(where),
        "cache": cache,
        "batch": _ranged(STEP, table, where) if has_ranges else paged_batch(STEP, table, where),
    }
    return {**arguments, "chunk": chunk} if has_chunk else arguments


def _choose(sizes: Sizes, backend: Backend) -> dict[str, Any]:
    where, width = place_of(backend), sizes.topk_widths[0]
    scores = random_tensor(make_generator("scores"), 3, 2 * width, dtype="float32")
    lengths = torch.tensor([2 * width, 3, width], dtype=torch.int32)
    return {"scores": scores.to(where), "lengths": lengths.to(where), "k": width, "width": width}


def _expand(backend: Backend) -> dict[str, Any]:
    where = place_of(backend)
    topk = torch.tensor([[2, 0, -1], [1, 4, 0], [0, -1, -1]], dtype=torch.int32)
    lengths = torch.tensor([14, 21, 6], dtype=torch.int32)
    return {"topk": topk.to(where), "lengths": lengths.to(where), "pool": POOL, "width": 4 * POOL}


def _rows(sizes: Sizes, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator("rows")
    pages = -(-LONGEST // sizes.block_size)
    table = torch.randperm(3 * pages, generator=generator).reshape(3, pages).to(torch.int32)
    topk = torch.stack([torch.randperm(LONGEST, generator=generator)[: sizes.topk_widths[0]] for _ in range(4)])
    return {
        "topk": _wide(topk.to(torch.int32), sizes.topk_widths[0]).to(where),
        "req_id": torch.tensor([2, 0, 0, 1], dtype=torch.int32, device=where),
        "block_table": table.to(where),
        "seq_lens": torch.tensor([LONGEST, 9, 20], dtype=torch.int32, device=where),
        "block_size": sizes.block_size,
        "parallel": Parallel(),
    }


def _wide(rows: torch.Tensor, width: int) -> torch.Tensor:
    """The rows filled up to a width with -1."""
    wide = rows.new_full((rows.shape[0], width), -1)
    wide[:, : rows.shape[1]] = rows
    return wide


def _sparse(name: str, sizes: Sizes, lists: int, need_lse: bool, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator(name)
    tokens, heads, width = 2, sizes.latent_heads[0], sizes.topk_widths[0]
    segments = []
    for _ in range(lists):
        cache, table = _filled(name, sizes, backend)
        pages = table.flatten().tolist()
        known = [page * cache.page_stride + row for page in pages for row in range(min(8, _page(sizes)))]
        rows = torch.full((tokens, width), -1, dtype=torch.int32)
        valid = torch.tensor([min(width, 8), 3], dtype=torch.int32)
        for token, number in enumerate(valid.tolist()):
            rows[token, :number] = torch.tensor(known)[torch.randperm(len(known), generator=generator)[:number]]
        segments.append(Segment(cache, rows.to(where), valid.to(where)))
    widths = segments[0].cache.layout.widths
    return {
        "q": random_tensor(generator, tokens, heads, sum(widths), dtype=sizes.dtype).to(where),
        "segments": tuple(segments),
        "kv_lora_rank": widths[0],
        "softmax_scale": 0.3,
        "need_lse": need_lse,
        "out": _nothing(tokens, heads, widths[0], sizes, where),
    }


def _with_sink(make: Callable[[Backend], dict[str, Any]], backend: Backend) -> dict[str, Any]:
    arguments = make(backend)
    q: torch.Tensor = arguments["q"]
    return arguments | {"sink": random_tensor(make_generator("sink"), q.shape[1], dtype="float32").to(q.device)}


def _merge(sizes: Sizes, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator("merge")
    states = {f"out_{side}": random_tensor(generator, 5, 3, 24, dtype=sizes.dtype).to(where) for side in "ab"}
    logs = {f"lse_{side}": random_tensor(generator, 5, 3, dtype="float32").to(where) for side in "ab"}
    return states | logs


def _sink(sizes: Sizes, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator("sink")
    return {
        "out": random_tensor(generator, 5, 3, 24, dtype=sizes.dtype).to(where),
        "lse": random_tensor(generator, 5, 3, dtype="float32").to(where),
        "sink": random_tensor(generator, 3, dtype="float32").to(where),
    }


def _compress(is_index: bool, dtype: str, backend: Backend) -> dict[str, Any]:
    where, generator = place_of(backend), make_generator("compress")
    page, pages, groups = 16, 2, 2
    kept = groups * RATIO
    states = poisoned_cache(state_layout(groups * ENTRY, dtype), 3 * pages, kept)
    states.storage.copy_(random_tensor(generator, *states.storage.shape, dtype=states.layout.dtype))
    layout = index_layout(ENTRY, dtype) if is_index else latent_layout(ENTRY, 0, dtype)
    entries = poisoned_cache(layout, 3 * pages, page // RATIO)
    table = torch.randperm(3 * pages, generator=generator)[: 2 * pages].reshape(2, pages).to(torch.int32)
    requests, positions = zip(*CLOSING.positions, strict=True)
    slots, entry_slots = [], []
    for request, position in CLOSING.positions:
        on, offset = int(table[request, position // page]), position % page
        slots.append(on * kept + offset % kept)
        entry_slots.append(on * (page // RATIO) + offset // RATIO if (position + 1) % RATIO == 0 else -1)
    wide = (CLOSING.num_tokens, groups * ENTRY)
    turns = random_tensor(generator, CLOSING.num_tokens, ROPE // 2, dtype="float32").to(where)
    compressor = Compressor(
        kv=random_tensor(generator, *wide, dtype=dtype).to(where),
        score=random_tensor(generator, *wide, dtype=dtype).to(where),
        position_bias=random_tensor(generator, RATIO, groups * ENTRY, dtype="float32").to(where),
        norm_weight=None if is_index else random_tensor(generator, ENTRY, dtype=dtype).to(where),
        cos=None if is_index else turns.cos(),
        sin=None if is_index else turns.sin(),
    )
    return {
        "compressor": compressor,
        "states": copy_cache(states, where),
        "entries": copy_cache(entries, where),
        "batch": CompressedBatch(
            state_slots=torch.tensor(slots, device=where),
            entry_slots=torch.tensor(entry_slots, device=where),
            query_start_loc=CLOSING.query_start_loc.to(where),
            req_id=torch.tensor(requests, dtype=torch.int32, device=where),
            positions=torch.tensor(positions, dtype=torch.int64, device=where),
            block_table=table.to(where),
        ),
        "ratio": RATIO,
    }
