"""Latent attention of each token over its own list of cache rows."""

import triton
import triton.language as tl

from .fp8 import fp8_unit
from .softmax import LOG2E, finish_rows, fold_tile, load_rows, multiply, sink_share
from .stored import load_factor, load_lanes, load_mixed, load_rest, load_scales


@triton.jit(
    do_not_specialize=["scale", "num_heads", "width", "num_rows", "page_stride", "first_part", "out_part", "lse_part"],
    do_not_specialize_on_alignment=["valid", "lse", "scales", "sink"],
)
def attend_rows(
    q,
    cache,
    rows,
    valid,
    scales,
    sink,
    out,
    lse,
    q_token,
    q_head,
    cache_row,
    rows_token,
    out_part,
    out_token,
    out_head,
    lse_part,
    lse_token,
    scale,
    num_heads,
    width,
    num_rows,
    page_stride,
    first_part,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    HAS_LSE: tl.constexpr,
    HAS_SINK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    NUM_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    FP8: tl.constexpr,
    SCALES: tl.constexpr,
    SHARE: tl.constexpr,
    SCALE_AT: tl.constexpr,
    PLAIN_AT: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    LANES: tl.constexpr,
    PIECE: tl.constexpr,
    SCALE_ROW: tl.constexpr,
    PAGE: tl.constexpr,
):
    """A program: BLOCK_M heads of one token, one part of its list, BLOCK_C columns of the latent.

    Grid: (tokens * head tiles * NUM_C, parts). With NUM_C above 1 every program computes the scores over the whole row, piece
    by piece, and adds up one piece of the values, so that its sum fits the registers. Part p writes slice first_part + p. What is
    stored as bytes meets the queries as it is: its scales are those of scores and weights. With LANES above 0 a row is a record
    of so many bytes and plain lanes behind them, which are values, too: it is read as what it stands for.
    """
    program = tl.program_id(0)
    part = tl.program_id(1)
    piece = program % NUM_C
    head_tiles = tl.cdiv(num_heads, BLOCK_M)
    heads = program // NUM_C % head_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    token = (program // (NUM_C * head_tiles)).to(tl.int64)
    is_live = heads < num_heads
    count = tl.minimum(tl.load(valid + token), width)
    share = tl.cdiv(tl.cdiv(count, BLOCK_N), tl.num_programs(1)) * BLOCK_N
    start = part * share
    stop = tl.minimum(count, start + share)

    if FP8 > 0 and SCALES < 4:
        scale *= load_factor(scales, SCALES, 0, 0) * fp8_unit(FP8)
    columns = tl.arange(0, BLOCK_C)
    rest = tl.arange(0, BLOCK_R)
    kind: tl.constexpr = q.dtype.element_ty
    values = piece * BLOCK_C + columns
    queries = q + token * q_token + heads.to(tl.int64) * q_head
    if NUM_C == 1:
        q_main = load_rows(queries, is_live, columns, MAIN, BLOCK_C)
    if REST > 0:
        q_rest = load_rows(queries + MAIN, is_live, rest, REST, BLOCK_R)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for first_n in range(start, stop, BLOCK_N):
        n = first_n + tl.arange(0, BLOCK_N)
        at = tl.load(rows + token * rows_token + n, mask=n < stop, other=-1)
        is_there = at.to(tl.uint32, bitcast=True) < num_rows.to(tl.uint32)
        keys = cache + at.to(tl.int64) * cache_row
        if LANES > 0:
            page = (at // page_stride).to(tl.int64)
            offset = at % page_stride
            # Pieces end behind their page's tokens.
            is_there = is_there & (offset < PAGE)
            keys = cache + page * cache_row + offset * PIECE
            scales_at = cache + page * cache_row + SCALE_AT + offset * SCALE_ROW
        scores = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if NUM_C == 1:
            if LANES > 0:
                value = load_mixed(
                    keys, scales_at, is_there, 0, BLOCK_C, MAIN, LANES, SHARE, PLAIN_AT, True, LANES < MAIN, FP8, IS_ALIGNED, kind
                )
            else:
                value = load_lanes(keys, is_there, columns, MAIN, BLOCK_C, FP8, kind)
            scores = multiply(q_main, tl.trans(value), scores)
            if SCALES == 4:
                block_scale = load_scales(keys + SCALE_AT, is_there, IS_ALIGNED) * fp8_unit(FP8)
                scores = scores * block_scale[None, :]
        else:
            # An address that depends on the loop keeps the compiler from holding every piece of the queries in registers.
            again = queries + tl.minimum(first_n, 0)
            for c in tl.static_range((MAIN + BLOCK_C - 1) // BLOCK_C):
                q_piece = load_rows(again, is_live, c * BLOCK_C + columns, MAIN, NUM_C * BLOCK_C)
                if LANES > 0:
                    k_piece = load_mixed(
                        keys,
                        scales_at,
                        is_there,
                        c * BLOCK_C,
                        BLOCK_C,
                        MAIN,
                        LANES,
                        SHARE,
                        PLAIN_AT,
                        c * BLOCK_C < LANES,
                        c * BLOCK_C + BLOCK_C > LANES,
                        FP8,
                        IS_ALIGNED,
                        kind,
                    )
                else:
                    k_piece = load_lanes(keys, is_there, c * BLOCK_C + columns, MAIN, NUM_C * BLOCK_C, FP8, kind)
                if SCALES == 4:
                    block_scale = load_scales(keys + (SCALE_AT + 4 * (c * BLOCK_C // SHARE)), is_there, IS_ALIGNED) * fp8_unit(
                        FP8
                    )
                    products = multiply(q_piece, tl.trans(k_piece), tl.zeros([BLOCK_M, BLOCK_N], tl.float32))
                    scores += products * block_scale[None, :]
                else:
                    scores = multiply(q_piece, tl.trans(k_piece), scores)
            if LANES > 0:
                first = piece * BLOCK_C
                value = load_mixed(
                    keys, scales_at, is_there, first, BLOCK_C, MAIN, LANES, SHARE, PLAIN_AT, True, True, FP8, IS_ALIGNED, kind
                )
            else:
                value = load_lanes(keys, is_there, values, MAIN, NUM_C * BLOCK_C, FP8, kind)
        if REST > 0:
            k_rest = load_rest(keys, is_there, rest, MAIN, REST, BLOCK_R, PLAIN_AT, FP8, IS_ALIGNED, kind)
            scores = multiply(q_rest, tl.trans(k_rest), scores)
        scores = scores * (scale * LOG2E)
        weights, peak, total, shrink = fold_tile(scores, is_there[None, :], peak, total)
        if SCALES == 4:
            if NUM_C > 1:
                # A value's piece past the last scale is empty.
                number = tl.minimum(piece * BLOCK_C // SHARE, (MAIN - 1) // SHARE)
                block_scale = load_scales(keys + (SCALE_AT + 4 * number), is_there, IS_ALIGNED) * fp8_unit(FP8)
            weights = weights * block_scale[None, :]
        result = multiply(weights.to(value.dtype), value, result * shrink[:, None])
    result, logs = finish_rows(result, peak, total)
    if FP8 > 0 and SCALES < 4:
        result = result * (load_factor(scales, SCALES, 0, 0) * fp8_unit(FP8))
    if HAS_SINK:
        result = result * sink_share(logs, tl.load(sink + heads, mask=is_live, other=0.0))[:, None]
    slot = (first_part + part).to(tl.int64)
    to = out + slot * out_part + token * out_token + heads.to(tl.int64) * out_head
    mask = is_live[:, None] & (values < MAIN)[None, :]
    tl.store(to[:, None] + values[None, :], result.to(out.dtype.element_ty), mask=mask)
    if HAS_LSE and piece == 0:
        tl.store(lse + slot * lse_part + token * lse_token + heads, logs, mask=is_live)
