"""Latent attention of each token over lists of cache rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_numbers, dense_rows, refuse_shared

from .attend import Results
from .checks import check_segments, count_parts, plain_name, prepare_results, require_tile
from .launch import Launch
from .merge import join_launch
from .operands import read_sink
from .stored import Stored, store_of
from .tiles import Machine, Tile, Widths, most_at_once

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A list of rows of one cache: rows int32 [tokens, width], valid int32 [tokens]."""

    stored: Stored
    rows: Any
    valid: Any


def plan_parts(machine: Machine, tile: Tile, tokens: int, heads: int, width: int) -> int:
    """Into how many parts a list of this width is split."""
    programs = tokens * -(-heads // tile.block_m) * tile.num_c
    return count_parts(machine, programs, -(-width // tile.block_n))


def sparse_launch(
    tile: Tile, widths: Widths, q: Any, listed: Rows, results: Results, softmax_scale: float, first_part: int, parts: int
) -> Launch:
    """One list: its parts go to the results from first_part on."""
    tokens, heads, _ = q.shape
    stored, rows, valid, out, lse = listed.stored, listed.rows, listed.valid, results.out, results.lse
    return Launch(
        kernel="sparse:attend_rows",
        grid=(tokens * -(-heads // tile.block_m) * tile.num_c, parts),
        tensors={"q": q, "cache": stored.rows, "rows": rows, "out": out},
        tables={
            "valid": valid,
            "scales": valid if stored.scales is None else stored.scales,
            "sink": valid if results.sink is None else results.sink,
            "lse": valid if lse is None else lse,
        },
        strides={
            "q_token": q.stride(0),
            "q_head": q.stride(1),
            "cache_row": stored.row,
            "rows_token": rows.stride(0),
            "out_token": out.stride(1),
            "out_head": out.stride(2),
            "lse_token": 0 if lse is None else lse.stride(1),
        },
        numbers={
            "out_part": out.stride(0),
            "lse_part": 0 if lse is None else lse.stride(0),
            "scale": float(softmax_scale),
            "num_heads": heads,
            "width": rows.shape[1],
            "num_rows": stored.num_rows,
            "page_stride": stored.page_stride,
            "first_part": first_part,
        },
        constants={
            "MAIN": widths.main,
            "REST": widths.rest,
            "HAS_LSE": lse is not None,
            "HAS_SINK": results.sink is not None,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_C": tile.block_c,
            "NUM_C": tile.num_c,
            "BLOCK_R": widths.block_rest,
            **stored.read_constants(),
            **stored.mixed_constants(),
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def attend_rows(
    machine: Machine,
    run: Callable[[Launch], None],
    q: torch.Tensor,
    segments: Sequence[Segment],
    kv_lora_rank: int,
    softmax_scale: float,
    need_lse: bool,
    out: torch.Tensor | None,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, lora] and lse of q [tokens, heads, lora + rope] over each token's rows in all lists.

    The sink is in out alone.
    """
    import torch

    segments = tuple(segments)
    check_segments(q, segments, kv_lora_rank)
    lists = [(dense_numbers("rows", rows, 2), dense_numbers("valid", valid)) for _, rows, valid in segments]
    refuse_shared(out, q=q)
    sink = read_sink(sink, q.shape[1], out)
    out, lse = prepare_results(q, kv_lora_rank, need_lse, out)
    if not out.numel():
        return out, lse
    tokens, heads, width = q.shape
    q = dense_rows(q)
    share = min(filter(None, (most_at_once(segment.cache.layout) for segment in segments)), default=0)
    widths = Widths(main=kv_lora_rank, rest=width - kv_lora_rank, splits=True, share=share)
    tile = require_tile(machine, "sparse", widths, plain_name(q), heads)
    parts = [plan_parts(machine, tile, tokens, heads, segment.rows.shape[1]) for segment in segments]
    total = sum(parts)
    if total == 1:
        results = Results(out=out[None], lse=None if lse is None else lse[None], sink=sink)
    else:
        partial = q.new_empty((total, *out.shape), dtype=torch.float32)
        results = Results(out=partial, lse=q.new_empty((total, *out.shape[:2]), dtype=torch.float32))
    first = 0
    for segment, (rows, valid), count in zip(segments, lists, parts, strict=True):
        listed = Rows(stored=store_of(segment.cache), rows=rows, valid=valid)
        run(sparse_launch(tile, widths, q, listed, results, softmax_scale, first, count))
        first += count
    if total > 1:
        run(join_launch(results.out, results.lse, out, lse, sink))
    return out, lse
