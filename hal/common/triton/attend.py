"""Attention of query tiles over paged keys, and over keys that lie end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_batch, dense_numbers, dense_rows, refuse_shared
from hal.common.contract.errors import BatchError
from hal.common.contract.masking import Masking

from .checks import check_keys, check_query, count_parts, plain_name, prepare_results, require_tile
from .choice import mark_choice
from .launch import Launch
from .merge import join_launch
from .operands import NO_RANGES, Ranges, key_ranges, read_sink
from .stored import AS_THEY_ARE, LATENTS, Stored, store_of
from .tiles import Machine, Tile, Widths, latent_widths, split_width

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache, PagedBatch, VarlenBatch

# A repair holds a row of results more than the pass before it, and a choice of keys a tile of bits, for which four warps have too
# few registers on sm_90, sm_100 and sm_120; sixteen have too few of their own (hal compile counts the spills).
_MOST_WARPS_ADDED = 8
# Nor do eight warps have enough for the bits of 64 rows on sm_90.
_MOST_CHOOSING_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a call does with its scores: which it takes, by what they are multiplied, and whether their LSE is wanted."""

    masking: Masking
    scale: float
    need_lse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where keys and values lie. Strides in elements; lengths: int32 [requests], or [requests + 1] where keys lie end to end.

    table: None where they do. value: elements of a value; pages: how many there are. stored: how a cache keeps them, None for
    keys of the queries' type. ranges: which of them each query sees, in place of a mask. choice: int32 [tokens, words], a bit
    for each key of its request that a query may see; None for all.
    """

    call: str
    k: Any
    v: Any
    k_row: int
    k_head: int
    v_row: int
    v_head: int
    kv_heads: int
    widths: Widths
    value: int
    lengths: Any
    max_length: int
    table: Any = None
    page: int = 1
    page_stride: int = 1
    pages: int = 0
    stored: Stored | None = None
    ranges: Ranges = NO_RANGES
    choice: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """The queries [tokens, heads, width] of a call and where each request's begin."""

    q: Any
    start_loc: Any
    num_requests: int
    max_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Where a kernel writes: out [parts, tokens, heads, value] and lse [parts, tokens, heads] or None.

    sink: fp32 [heads] that the results of one part are to have in their denominators, or None.
    """

    out: Any
    lse: Any
    sink: Any = None


def paged_keys(stored: Stored, value_rows: Any, batch: Any, ranges: Ranges = NO_RANGES) -> Keys:
    """The keys of a cache; value_rows are its rows [rows, width] from the first value element on."""
    layout, row = stored.layout, stored.row
    is_latent = layout.name in LATENTS
    if is_latent:
        kv_heads, head_dim, value = 1, 0, layout.widths[0]
        widths = latent_widths(layout)
    else:
        (kv_heads, head_dim), (_, value) = layout.parts
        main, rest = split_width(head_dim)
        widths = Widths(main=main, rest=rest, value=value)
    return Keys(
        call="latent" if is_latent else "attend",
        k=stored.rows,
        v=value_rows,
        k_row=row,
        k_head=head_dim,
        v_row=row,
        v_head=0 if is_latent else value,
        kv_heads=kv_heads,
        widths=widths,
        value=value,
        lengths=batch.seq_lens,
        max_length=batch.max_seq_len,
        table=batch.block_table,
        page=stored.block_size,
        page_stride=stored.page_stride,
        pages=stored.pages,
        stored=stored,
        ranges=ranges,
    )


def listed_keys(k: Any, v: Any, start_loc: Any, max_length: int, choice: Any = None) -> Keys:
    """The keys and values [keys, kv_heads, width] that lie end to end, request by request."""
    main, rest = split_width(k.shape[2])
    return Keys(
        call="attend",
        k=k,
        v=v,
        k_row=k.stride(0),
        k_head=k.stride(1),
        v_row=v.stride(0),
        v_head=v.stride(1),
        kv_heads=k.shape[1],
        widths=Widths(main=main, rest=rest, value=v.shape[2], chooses=choice is not None),
        value=v.shape[2],
        lengths=start_loc,
        max_length=max_length,
        choice=choice,
    )


def plan_parts(machine: Machine, tile: Tile, queries: Queries, keys: Keys, masking: Masking) -> int:
    """Into how many parts the keys of each program are split."""
    longest = keys.max_length
    if masking.window is not None:
        longest = min(longest, masking.window + queries.max_len)
    programs = _row_tiles(tile, queries, keys) * keys.kv_heads * tile.num_c * max(1, queries.num_requests)
    # Tokens that no request has fill no program, and still have a row in every part.
    rows = queries.q.shape[0] * queries.q.shape[1]
    return count_parts(machine, max(programs, -(-rows * tile.num_c // tile.block_m)), -(-longest // tile.block_n))


def attend_launch(tile: Tile, queries: Queries, keys: Keys, rules: Rules, results: Results, repairs: bool = False) -> Launch:
    """One pass over the keys, or the pass after it that repairs what keys made infinite that a query does not see."""
    q, out, lse, widths, masking = queries.q, results.out, results.lse, keys.widths, rules.masking
    shares_value = not widths.value and tile.num_c == 1
    is_paged = keys.table is not None
    group = q.shape[1] // keys.kv_heads
    tokens = _tokens_of_tile(tile, group) if repairs else 0
    holds_more = repairs or keys.choice is not None
    table = keys.table if is_paged else queries.start_loc
    scales = None if keys.stored is None else keys.stored.scales
    return Launch(
        kernel="attend:attend_keys",
        grid=(
            _row_tiles(tile, queries, keys) * keys.kv_heads * tile.num_c * max(1, tokens),
            queries.num_requests + 1,
            out.shape[0],
        ),
        tensors={"q": q, "k": keys.k, "v": keys.v, "out": out},
        tables={
            "block_table": table,
            "q_start_loc": queries.start_loc,
            "k_lens": keys.lengths,
            **keys.ranges.tables(queries.start_loc),
            "choice": queries.start_loc if keys.choice is None else keys.choice,
            "scales": queries.start_loc if scales is None else scales,
            "sink": queries.start_loc if results.sink is None else results.sink,
            "lse": queries.start_loc if lse is None else lse,
        },
        strides={
            "q_token": q.stride(0),
            "q_head": q.stride(1),
            "k_row": keys.k_row,
            "k_head": keys.k_head,
            "v_row": keys.v_row,
            "v_head": keys.v_head,
            "out_token": out.stride(1),
            "out_head": out.stride(2),
            "lse_token": 0 if lse is None else lse.stride(1),
        },
        numbers={
            "page_stride": keys.page_stride,
            "table_row": table.stride(0) if is_paged else 0,
            "out_part": out.stride(0),
            "lse_part": 0 if lse is None else lse.stride(0),
            "scale": float(rules.scale),
            "softcap": float(masking.softcap or 0.0),
            "window": masking.window or 0,
            "chunk": masking.chunk or 0,
            "num_tokens": q.shape[0],
            "num_requests": queries.num_requests,
            "table_width": table.shape[1] if is_paged else 0,
            "num_pages": keys.pages,
            "choice_row": 0 if keys.choice is None else keys.choice.stride(0),
        },
        constants={
            "IS_PAGED": is_paged,
            "PAGE": keys.page,
            "KV_HEADS": keys.kv_heads,
            "GROUP": group,
            "MAIN": widths.main,
            "REST": widths.rest,
            "VALUE": keys.value,
            "SHARES_VALUE": shares_value,
            "RANGES": keys.ranges.number,
            "HAS_CHOICE": keys.choice is not None,
            "CAUSAL": masking.causal,
            "HAS_WINDOW": masking.window is not None,
            "HAS_CHUNK": masking.chunk is not None,
            "HAS_SOFTCAP": masking.softcap is not None,
            "HAS_LSE": lse is not None,
            "HAS_SINK": results.sink is not None,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_C": tile.block_c,
            "NUM_C": tile.num_c,
            "BLOCK_R": widths.block_rest,
            "BLOCK_V": widths.block_value or tile.block_c,
            "NUM_V": tile.num_c,
            "TOKENS": tokens,
            **(AS_THEY_ARE if keys.stored is None else keys.stored.read_constants()),
        },
        num_warps=max(tile.num_warps, min(2 * tile.num_warps, _MOST_WARPS_ADDED)) if holds_more else tile.num_warps,
        num_stages=tile.num_stages,
    )


def attend_pages(
    machine: Machine,
    run: Callable[[Launch], None],
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    rules: Rules,
    out: torch.Tensor | None,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, value] and lse of every query over its request's pages, the sink in out alone."""
    check_query(q, cache)
    ranges = key_ranges(batch, q.shape[0])
    if ranges.number:
        rules = replace(rules, masking=Masking(causal=False, softcap=rules.masking.softcap))
    batch = dense_batch(batch)
    stored = store_of(cache)
    value_rows = stored.rows if cache.layout.name in LATENTS else stored.rows[:, cache.layout.widths[0] :]
    keys = paged_keys(stored, value_rows, batch, ranges)
    queries = Queries(
        q=dense_rows(q), start_loc=batch.query_start_loc, num_requests=batch.seq_lens.shape[0], max_len=batch.max_query_len
    )
    refuse_shared(out, q=q)
    sink = read_sink(sink, q.shape[1], out)
    return _attend(machine, run, queries, keys, rules, out, sink)


def attend_varlen(
    machine: Machine,
    run: Callable[[Launch], None],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    rules: Rules,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, value] and lse of every query over its request's keys, the last query aligned with the last key."""
    check_keys(q, k, v)
    q_start_loc = dense_numbers("q_start_loc", batch.q_start_loc)
    k_start_loc = dense_numbers("k_start_loc", batch.k_start_loc)
    if q_start_loc.shape != k_start_loc.shape or not q_start_loc.shape[0]:
        raise BatchError(
            f"q_start_loc has {q_start_loc.shape[0]} entries and k_start_loc {k_start_loc.shape[0]}; "
            "both need one more than there are requests"
        )
    refuse_shared(out, q=q, k=k, v=v)
    choice = mark_choice(run, replace(batch, q_start_loc=q_start_loc, k_start_loc=k_start_loc), q.shape[0])
    keys = listed_keys(dense_rows(k), dense_rows(v), k_start_loc, batch.max_seq_len, choice)
    queries = Queries(q=dense_rows(q), start_loc=q_start_loc, num_requests=q_start_loc.shape[0] - 1, max_len=batch.max_query_len)
    return _attend(machine, run, queries, keys, rules, out)


def _attend(
    machine: Machine,
    run: Callable[[Launch], None],
    queries: Queries,
    keys: Keys,
    rules: Rules,
    out: torch.Tensor | None,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    import torch

    q = queries.q
    out, lse = prepare_results(q, keys.value, rules.need_lse, out)
    if not out.numel():
        return out, lse
    tile = require_tile(machine, keys.call, keys.widths, plain_name(q), count_rows(queries, keys))
    parts = plan_parts(machine, tile, queries, keys, rules.masking)
    if parts == 1:
        results = Results(out=out[None], lse=None if lse is None else lse[None], sink=sink)
        for repairs in attend_passes(tile, queries, keys, rules.masking):
            run(attend_launch(tile, queries, keys, rules, results, repairs))
        return out, lse
    partial = q.new_empty((parts, *out.shape), dtype=torch.float32)
    partial_lse = q.new_empty((parts, *out.shape[:2]), dtype=torch.float32)
    for repairs in attend_passes(tile, queries, keys, rules.masking):
        run(attend_launch(tile, queries, keys, rules, Results(out=partial, lse=partial_lse), repairs))
    run(join_launch(partial, partial_lse, out, lse, sink))
    return out, lse


def count_rows(queries: Queries, keys: Keys) -> int:
    """The query rows per KV head that a call's tile is chosen by."""
    heads: int = queries.q.shape[1]
    rows = queries.max_len * (heads // keys.kv_heads)
    return rows if keys.choice is None else min(rows, _MOST_CHOOSING_ROWS)


def attend_passes(tile: Tile, queries: Queries, keys: Keys, masking: Masking) -> tuple[bool, ...]:
    """Whether a pass repairs, pass by pass: there is nothing to repair where all of a tile's rows see the same keys."""
    tokens = min(queries.max_len, _tokens_of_tile(tile, queries.q.shape[1] // keys.kv_heads))
    is_masked = keys.ranges.number or masking != Masking(causal=False, softcap=masking.softcap)
    sees_alike = tokens <= 1 or not (is_masked or keys.choice is not None)
    return (False,) if sees_alike else (False, True)


def _tokens_of_tile(tile: Tile, group: int) -> int:
    """The most tokens whose rows lie in one tile, which may begin between those of one."""
    if tile.block_m % group == 0 or group % tile.block_m == 0:
        return max(1, tile.block_m // group)
    return (tile.block_m - 2) // group + 2


def _row_tiles(tile: Tile, queries: Queries, keys: Keys) -> int:
    heads: int = queries.q.shape[1]
    rows = queries.max_len * (heads // keys.kv_heads)
    return max(1, -(-rows // tile.block_m))
