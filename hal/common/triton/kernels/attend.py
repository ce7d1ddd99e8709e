"""Softmax attention of query tiles over the keys of their request, paged or end to end."""

import triton
import triton.language as tl

from .fp8 import fp8_unit
from .softmax import LOG2E, cap_scores, finish_rows, fold_tile, load_rows, multiply, sink_share
from .stored import load_factor, load_lanes, load_rest, load_scales


@triton.jit(
    do_not_specialize=[
        "scale",
        "softcap",
        "window",
        "chunk",
        "num_tokens",
        "num_requests",
        "table_width",
        "num_pages",
        "page_stride",
        "table_row",
        "out_part",
        "lse_part",
        "choice_row",
    ],
    do_not_specialize_on_alignment=[
        "block_table",
        "q_start_loc",
        "k_lens",
        "lse",
        "scales",
        "sink",
        "choice",
        "key_starts",
        "key_stops",
    ],
)
def attend_keys(
    q,
    k,
    v,
    block_table,
    q_start_loc,
    k_lens,
    key_starts,
    key_stops,
    choice,
    scales,
    sink,
    out,
    lse,
    q_token,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    page_stride,
    table_row,
    out_part,
    out_token,
    out_head,
    lse_part,
    lse_token,
    scale,
    softcap,
    window,
    chunk,
    num_tokens,
    num_requests,
    table_width,
    num_pages,
    choice_row,
    IS_PAGED: tl.constexpr,
    PAGE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    VALUE: tl.constexpr,
    SHARES_VALUE: tl.constexpr,
    RANGES: tl.constexpr,
    HAS_CHOICE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_LSE: tl.constexpr,
    HAS_SINK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    NUM_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_V: tl.constexpr,
    TOKENS: tl.constexpr,
    FP8: tl.constexpr,
    SCALES: tl.constexpr,
    SHARE: tl.constexpr,
    SCALE_AT: tl.constexpr,
    PLAIN_AT: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):
    """A program: BLOCK_M (token, head) rows of one KV head of one request, one part of its keys, BLOCK_V columns of out.

    Grid: (row tiles * KV heads * value tiles, requests + 1, parts); the extra request is the padding past the last one.
    A key is MAIN elements in NUM_C pieces of BLOCK_C, then REST in one of BLOCK_R. The value is the key's own first piece
    (SHARES_VALUE) or lies at v. What is stored as bytes meets the queries as it is: its scales are those of scores and weights.
    With RANGES a query sees the keys below its own stop, from its own start on (2) or from 0 (1); with HAS_CHOICE those alone
    that have a bit in its row of `choice`.

    With TOKENS above 0 the kernel repairs. A weight of zero keeps finite values out and no others, so rows whose tile reads NaN
    or infinities that other rows see are not finite. Each of TOKENS programs does one of a tile's tokens, and nothing where its
    result is finite: it reads what that token sees alone, in the same tile.
    """
    tile = tl.program_id(0)
    if TOKENS > 0:
        turn = tile % TOKENS
        tile = tile // TOKENS
    request = tl.program_id(1)
    part = tl.program_id(2).to(tl.int64)
    first_v = tile % NUM_V * BLOCK_V
    kv_head = (tile // NUM_V % KV_HEADS).to(tl.int64)
    tile = tile // (NUM_V * KV_HEADS)
    is_request = request < num_requests
    begin = tl.load(q_start_loc + request)
    end = tl.load(q_start_loc + request + 1, mask=is_request, other=num_tokens)
    query_len = end - begin
    values = first_v + tl.arange(0, BLOCK_V)
    lanes = tl.arange(0, BLOCK_M)
    # Programs whose tile lies past the queries have nothing to do; padding may need more rounds than there are tiles.
    num_tiles = tl.num_programs(0) // (NUM_V * KV_HEADS)
    if request == num_requests:
        if TOKENS == 0:
            for first_row in range(tile * BLOCK_M, query_len * GROUP, num_tiles * BLOCK_M):
                row = first_row + lanes
                token = (begin + row // GROUP).to(tl.int64)
                head = kv_head * GROUP + row % GROUP
                is_live = row < query_len * GROUP
                to = out + part * out_part + token * out_token + head * out_head
                zeros = tl.zeros([BLOCK_M, BLOCK_V], out.dtype.element_ty)
                tl.store(to[:, None] + values[None, :], zeros, mask=is_live[:, None] & (values < VALUE)[None, :])
                if HAS_LSE and first_v == 0:
                    nothing = tl.full([BLOCK_M], float("-inf"), tl.float32)
                    tl.store(lse + part * lse_part + token * lse_token + head, nothing, mask=is_live)
        return
    if tile * BLOCK_M >= query_len * GROUP:
        return

    row = tile * BLOCK_M + lanes
    is_live = row < query_len * GROUP
    token = (begin + row // GROUP).to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    if IS_PAGED:
        seq_len = tl.load(k_lens + request)
        first_key = 0
    else:
        first_key = tl.load(k_lens + request)
        seq_len = tl.load(k_lens + request + 1) - first_key
    shift = seq_len - query_len
    position = shift + row // GROUP
    first = shift + tile * BLOCK_M // GROUP
    last = shift + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, query_len - 1)
    start = 0
    stop = seq_len
    if CAUSAL:
        stop = tl.minimum(stop, last + 1)
    if HAS_WINDOW:
        start = tl.maximum(start, first - window + 1)
        if not CAUSAL:
            stop = tl.minimum(stop, last + window)
    if HAS_CHUNK:
        start = tl.maximum(start, first // chunk * chunk)
        stop = tl.minimum(stop, (last // chunk + 1) * chunk)
    if RANGES > 0:
        row_stop = tl.load(key_stops + token, mask=is_live, other=0)
        row_start = tl.zeros([BLOCK_M], tl.int32)
        if RANGES == 2:
            row_start = tl.maximum(tl.load(key_starts + token, mask=is_live, other=0), 0)
        # An empty range may lie anywhere.
        row_stop = tl.where(row_stop > row_start, row_stop, 0)
        stop = tl.max(row_stop, 0)
        start = tl.minimum(tl.min(tl.where(row_stop > 0, row_start, 2147483647), 0), stop)
    if IS_PAGED:
        stop = tl.minimum(stop, table_width * PAGE)
    # Pages that lie behind every row's reach may be another request's.
    low = start
    high = stop
    if TOKENS > 0:
        own = first + turn
        if own > last:
            return
        is_live = is_live & (position == own)
        at_out = out + part * out_part + token * out_token + head * out_head
        found = tl.load(at_out[:, None] + values[None, :], mask=is_live[:, None] & (values < VALUE)[None, :], other=0.0)
        if tl.max(tl.max(tl.where(tl.abs(found.to(tl.float32)) < float("inf"), 0, 1), 1), 0) == 0:
            return
        if RANGES > 0:
            high = tl.minimum(high, tl.max(tl.where(is_live, row_stop, 0), 0))
            low = tl.maximum(low, tl.max(tl.where(is_live, row_start, 0), 0))
        if CAUSAL:
            high = tl.minimum(high, own + 1)
        if HAS_WINDOW:
            low = tl.maximum(low, own - window + 1)
            if not CAUSAL:
                high = tl.minimum(high, own + window)
        if HAS_CHUNK:
            low = tl.maximum(low, own // chunk * chunk)
            high = tl.where(own >= 0, tl.minimum(high, (own // chunk + 1) * chunk), 0)
    start = start // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(tl.maximum(stop - start, 0), BLOCK_N), tl.num_programs(2)) * BLOCK_N
    start = start + tl.program_id(2) * share
    stop = tl.minimum(stop, start + share)

    if FP8 > 0 and SCALES < 4:
        scale *= load_factor(scales, SCALES, kv_head, 0) * fp8_unit(FP8)
    columns = tl.arange(0, BLOCK_C)
    rest = tl.arange(0, BLOCK_R)
    kind: tl.constexpr = q.dtype.element_ty
    queries = q + token * q_token + head * q_head
    if NUM_C == 1:
        q_main = load_rows(queries, is_live, columns, MAIN, BLOCK_C)
    if REST > 0:
        q_rest = load_rows(queries + MAIN, is_live, rest, REST, BLOCK_R)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    table = block_table + request.to(tl.int64) * table_row
    for first_n in range(start, stop, BLOCK_N):
        n = first_n + tl.arange(0, BLOCK_N)
        is_there = (n >= low) & (n < tl.minimum(high, stop))
        if IS_PAGED:
            page = tl.load(table + n // PAGE, mask=is_there, other=-1)
            is_there = page.to(tl.uint32, bitcast=True) < num_pages.to(tl.uint32)
            at = page.to(tl.int64) * page_stride + n % PAGE
        else:
            at = (first_key + n).to(tl.int64)
        if HAS_CHOICE:
            where = choice + token[:, None] * choice_row + (n // 32)[None, :]
            words = tl.load(where, mask=is_live[:, None] & is_there[None, :], other=0)
            is_chosen = ((words >> (n % 32)[None, :]) & 1) > 0
            # A key that none of the rows was given is not read.
            is_there = is_there & (tl.max(is_chosen.to(tl.int32), 0) > 0)
        keys = k + at * k_row + kv_head * k_head
        scores = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if NUM_C == 1:
            k_main = load_lanes(keys, is_there, columns, MAIN, BLOCK_C, FP8, kind)
            scores = multiply(q_main, tl.trans(k_main), scores)
            if SCALES == 4:
                block_scale = load_scales(keys + SCALE_AT, is_there, IS_ALIGNED) * fp8_unit(FP8)
                scores = scores * block_scale[None, :]
        else:
            # An address that depends on the loop keeps the compiler from holding every piece of the queries in registers.
            again = queries + tl.minimum(first_n, 0)
            for c in tl.static_range((MAIN + BLOCK_C - 1) // BLOCK_C):
                q_piece = load_rows(again, is_live, c * BLOCK_C + columns, MAIN, NUM_C * BLOCK_C)
                k_piece = load_lanes(keys, is_there, c * BLOCK_C + columns, MAIN, NUM_C * BLOCK_C, FP8, kind)
                if SCALES == 4:
                    block_scale = load_scales(keys + (SCALE_AT + 4 * (c * BLOCK_C // SHARE)), is_there, IS_ALIGNED) * fp8_unit(
                        FP8
                    )
                    products = multiply(q_piece, tl.trans(k_piece), tl.zeros([BLOCK_M, BLOCK_N], tl.float32))
                    scores += products * block_scale[None, :]
                else:
                    scores = multiply(q_piece, tl.trans(k_piece), scores)
        if REST > 0:
            k_rest = load_rest(keys, is_there, rest, MAIN, REST, BLOCK_R, PLAIN_AT, FP8, IS_ALIGNED, kind)
            scores = multiply(q_rest, tl.trans(k_rest), scores)
        if HAS_SOFTCAP:
            scores = cap_scores(scores * scale, softcap) * LOG2E
        else:
            scores = scores * (scale * LOG2E)
        is_seen = is_there[None, :]
        if HAS_CHOICE:
            is_seen = is_seen & is_chosen
        if RANGES > 0:
            is_seen = is_seen & (n[None, :] >= row_start[:, None]) & (n[None, :] < row_stop[:, None])
        if CAUSAL:
            is_seen = is_seen & (n[None, :] <= position[:, None])
        if HAS_WINDOW:
            is_seen = is_seen & (n[None, :] > position[:, None] - window)
            if not CAUSAL:
                is_seen = is_seen & (n[None, :] < position[:, None] + window)
        if HAS_CHUNK:
            # Division rounds towards zero, so a position before the first key would land in the first chunk.
            in_chunk = (n // chunk)[None, :] == (position // chunk)[:, None]
            is_seen = is_seen & in_chunk & (position >= 0)[:, None]
        weights, peak, total, shrink = fold_tile(scores, is_seen, peak, total)
        if SHARES_VALUE:
            value = k_main
        else:
            value = load_lanes(v + at * v_row + kv_head * v_head, is_there, values, VALUE, NUM_V * BLOCK_V, FP8, kind)
        if SCALES == 4:
            if NUM_C > 1:
                # A value's piece past the last scale is empty.
                number = tl.minimum(first_v // SHARE, (MAIN - 1) // SHARE)
                block_scale = load_scales(keys + (SCALE_AT + 4 * number), is_there, IS_ALIGNED) * fp8_unit(FP8)
            weights = weights * block_scale[None, :]
        result = multiply(weights.to(value.dtype), value, result * shrink[:, None])
    result, logs = finish_rows(result, peak, total)
    if FP8 > 0 and SCALES < 4:
        result = result * (load_factor(scales, SCALES, kv_head, KV_HEADS) * fp8_unit(FP8))
    if HAS_SINK:
        result = result * sink_share(logs, tl.load(sink + head, mask=is_live, other=0.0))[:, None]
    if TOKENS > 0:
        # Another address as far as the compiler knows, so that the first is not held in registers while the keys pass.
        token += tl.minimum(begin, 0)
    to = out + part * out_part + token * out_token + head * out_head
    tl.store(
        to[:, None] + values[None, :],
        result.to(out.dtype.element_ty),
        mask=is_live[:, None] & (values < VALUE)[None, :],
    )
    if HAS_LSE and first_v == 0:
        tl.store(lse + part * lse_part + token * lse_token + head, logs, mask=is_live)
