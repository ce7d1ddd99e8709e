"""The indexer's scores of paged keys."""

import triton
import triton.language as tl

from .fp8 import decode_fp8, fp8_unit
from .softmax import load_rows, multiply
from .stored import find_lanes, find_scales, load_scales, spread_lanes


@triton.jit
def load_keys(
    lanes_at,
    scales_at,
    is_there,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARE: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_BYTES: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    FP8: tl.constexpr,
    kind: tl.constexpr,
):
    """A tile [keys, BLOCK] from bytes and what its scores are to be multiplied by: a key's scale where it has one."""
    columns = tl.arange(0, BLOCK)
    mask = is_there[:, None] & (columns < WIDTH)[None, :]
    codes = tl.load(lanes_at[:, None] + spread_lanes(columns, TILE_TOKENS, TILE_BYTES)[None, :], mask=mask, other=0)
    values = decode_fp8(codes, FP8)
    if SHARE >= WIDTH:
        return values.to(kind), load_scales(scales_at, is_there, IS_ALIGNED) * fp8_unit(FP8)
    scales = load_scales(scales_at[:, None] + columns[None, :] // SHARE * 4, mask, IS_ALIGNED) * fp8_unit(FP8)
    return (values * scales).to(kind), tl.full([lanes_at.shape[0]], 1.0, tl.float32)


@triton.jit(
    do_not_specialize=[
        "token_start",
        "token_stop",
        "request_start",
        "num_requests",
        "num_columns",
        "table_width",
        "num_pages",
        "num_heads",
        "page_stride",
        "table_row",
        "scores_row",
    ],
    do_not_specialize_on_alignment=["weights", "block_table", "q_start_loc", "seq_lens", "scores", "key_starts", "key_stops"],
)
def score_keys(
    q,
    weights,
    cache,
    block_table,
    q_start_loc,
    seq_lens,
    key_starts,
    key_stops,
    scores,
    q_token,
    q_head,
    weights_token,
    cache_row,
    page_stride,
    table_row,
    scores_row,
    token_start,
    token_stop,
    request_start,
    num_requests,
    num_columns,
    table_width,
    num_pages,
    num_heads,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_T: tl.constexpr,
    RANGES: tl.constexpr,
    FP8: tl.constexpr,
    SHARE: tl.constexpr,
    PIECE: tl.constexpr,
    SCALE_AT: tl.constexpr,
    SCALE_ROW: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_BYTES: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):
    """A program: BLOCK_T tokens of one request against BLOCK_N of its keys, which it reads once.

    Grid: (key tiles, token tiles, requests + 1); the extra request is the padding past the last one. With RANGES a token sees
    the keys below its own stop, from its own start on (2) or from 0 (1).
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    slot = tl.program_id(2)
    request = request_start + slot
    is_request = slot < num_requests
    begin = tl.load(q_start_loc + request)
    end = tl.load(q_start_loc + request + 1, mask=is_request, other=token_stop)
    first = tl.maximum(begin, token_start)
    stop = tl.minimum(end, token_stop)
    is_column = n < num_columns
    if slot == num_requests:
        nothing = tl.full([BLOCK_N], float("-inf"), tl.float32)
        to = scores + (first - token_start).to(tl.int64) * scores_row + n
        if tl.program_id(1) == 0:
            for _ in range(first, stop):
                tl.store(to, nothing, mask=is_column)
                to += scores_row
        return
    first += tl.program_id(1) * BLOCK_T
    stop = tl.minimum(stop, first + BLOCK_T)
    if first >= stop:
        return

    # A token's bound counts the keys up to its own position.
    shift = tl.load(seq_lens + request) - end + 1
    column = n // PAGE
    bound = shift + stop - 1
    if RANGES > 0:
        tokens = first + tl.arange(0, BLOCK_T)
        bound = tl.max(tl.load(key_stops + tokens, mask=tokens < stop, other=0), 0)
    is_there = is_column & (n < bound) & (column < table_width)
    table = block_table + request.to(tl.int64) * table_row
    page = tl.load(table + column, mask=is_there, other=-1)
    is_there = is_there & (page >= 0) & (page < num_pages)
    page = page.to(tl.int64)
    columns = tl.arange(0, BLOCK_C)
    lanes_at = find_lanes(cache, page, n % PAGE, cache_row, page_stride, PIECE, TILE_TOKENS, TILE_BYTES)
    if FP8 > 0:
        scales_at = find_scales(cache, page, n % PAGE, cache_row, page_stride, PIECE, SCALE_AT, SCALE_ROW)
        kind: tl.constexpr = q.dtype.element_ty
        keys, key_scale = load_keys(
            lanes_at, scales_at, is_there, WIDTH, BLOCK_C, SHARE, TILE_TOKENS, TILE_BYTES, IS_ALIGNED, FP8, kind
        )
        keys = tl.trans(keys)
    else:
        keys = tl.trans(load_rows(lanes_at, is_there, columns, WIDTH, BLOCK_C))
    token = first.to(tl.int64)
    for _ in range(first, stop):
        score = tl.zeros([BLOCK_N], tl.float32)
        for first_head in range(0, num_heads, BLOCK_H):
            heads = first_head + tl.arange(0, BLOCK_H)
            is_head = heads < num_heads
            queries = load_rows(q + token * q_token + heads.to(tl.int64) * q_head, is_head, columns, WIDTH, BLOCK_C)
            products = multiply(queries, keys, tl.zeros([BLOCK_H, BLOCK_N], tl.float32))
            weight = tl.load(weights + token * weights_token + heads, mask=is_head, other=0.0)
            score += tl.sum(tl.maximum(products, 0.0) * weight[:, None], 0)
        if FP8 > 0:
            score *= key_scale
        if RANGES > 0:
            is_seen = is_there & (n < tl.load(key_stops + token))
            if RANGES == 2:
                is_seen = is_seen & (n >= tl.load(key_starts + token))
        else:
            is_seen = is_there & (n < shift + token)
        score = tl.where(is_seen, score, float("-inf"))
        tl.store(scores + (token - token_start) * scores_row + n, score, mask=is_column)
        token += 1
