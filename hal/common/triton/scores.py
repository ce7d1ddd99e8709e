"""The indexer's scores of a batch against its paged index keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch
from hal.common.contract.dense import dense_batch, dense_rows
from hal.common.contract.errors import LayoutError

from .checks import plain_name, require_tile
from .launch import Launch
from .operands import NO_RANGES, Ranges, check_chunk, key_ranges
from .stored import PLAIN_RECORDS, Stored, store_of
from .tiles import Machine, Tile, Widths

if TYPE_CHECKING:
    import torch

# Tokens of a request that share one reading of its keys.
_TOKENS = 16


def score_launch(
    tile: Tile, iq: Any, weights: Any, stored: Stored, batch: Any, chunk: IndexerChunk, scores: Any, ranges: Ranges = NO_RANGES
) -> Launch:
    """iq [tokens, heads, width] and weights fp32 [tokens, heads] into scores fp32 [chunk tokens, keys]."""
    _, heads, width = iq.shape
    queries = min(batch.max_query_len, chunk.token_stop - chunk.token_start)
    requests = chunk.request_stop - chunk.request_start
    return Launch(
        kernel="scores:score_keys",
        grid=(-(-scores.shape[1] // tile.block_n), max(1, -(-queries // _TOKENS)), requests + 1),
        tensors={"q": iq, "cache": stored.rows},
        tables={
            "weights": weights,
            "block_table": batch.block_table,
            "q_start_loc": batch.query_start_loc,
            "seq_lens": batch.seq_lens,
            **ranges.tables(batch.seq_lens),
            "scores": scores,
        },
        strides={
            "q_token": iq.stride(0),
            "q_head": iq.stride(1),
            "weights_token": weights.stride(0),
            "cache_row": stored.row,
        },
        numbers={
            "page_stride": stored.page_stride,
            "table_row": batch.block_table.stride(0),
            "scores_row": scores.stride(0),
            "token_start": chunk.token_start,
            "token_stop": chunk.token_stop,
            "request_start": chunk.request_start,
            "num_requests": requests,
            "num_columns": scores.shape[1],
            "table_width": batch.block_table.shape[1],
            "num_pages": stored.pages,
            "num_heads": heads,
        },
        constants={
            "PAGE": stored.block_size,
            "WIDTH": width,
            "BLOCK_H": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_C": tile.block_c,
            "BLOCK_T": _TOKENS,
            "RANGES": ranges.number,
            **_read_constants(stored),
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _read_constants(stored: Stored) -> dict[str, int | bool]:
    blocks = stored.layout.blocks
    places = PLAIN_RECORDS if blocks is None else stored.record_constants()
    names = ("PIECE", "SCALE_AT", "SCALE_ROW", "TILE_TOKENS", "TILE_BYTES", "IS_ALIGNED")
    return {"FP8": stored.fp8, "SHARE": 0 if blocks is None else blocks.block, **{name: places[name] for name in names}}


def index_scores(
    machine: Machine,
    run: Callable[[Launch], None],
    iq: torch.Tensor,
    weights: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    chunk: IndexerChunk | None,
) -> torch.Tensor:
    """Scores [chunk tokens, keys], -inf past each token's own position and in rows of padding."""
    import torch

    if iq.dim() != 3:
        raise LayoutError(f"index queries are {list(iq.shape)}; expected [tokens, heads, width]")
    tokens, heads, width = iq.shape
    layout = cache.layout
    is_known = layout.name == "indexer_fp8" or (layout.name == "indexer" and plain_name(iq) == layout.dtype)
    if not is_known or layout.widths != (width,) or tuple(weights.shape) != (tokens, heads):
        raise LayoutError(
            f"index queries {iq.dtype} {list(iq.shape)} with weights {list(weights.shape)} do not go with keys of layout "
            f"{layout.name!r}, {list(layout.widths)} in {layout.dtype}"
        )
    ranges = key_ranges(batch, tokens)
    batch = dense_batch(batch)
    if chunk is None:
        requests = batch.seq_lens.shape[0]
        chunk = IndexerChunk(
            token_start=0, token_stop=tokens, request_start=0, request_stop=requests, max_seq_len=batch.max_seq_len
        )
    else:
        check_chunk(chunk, batch, tokens)
    shape = (chunk.token_stop - chunk.token_start, chunk.max_seq_len)
    scores = iq.new_empty(shape, dtype=torch.float32)
    if not scores.numel():
        return scores
    tile = require_tile(machine, "scores", Widths(main=width, sums_values=False), plain_name(iq), heads)
    weights = dense_rows(weights.float())
    run(score_launch(tile, dense_rows(iq), weights, store_of(cache), batch, chunk, scores, ranges))
    return scores
