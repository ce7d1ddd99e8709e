"""Byte records of e4m3 lanes with a scale per SHARE of them and bf16 lanes behind, written from parts and read back into them."""

import triton
import triton.language as tl

from .fp8 import decode_fp8, encode_fp8, fp8_unit
from .stored import (
    find_lanes,
    find_scales,
    load_halves,
    load_parts,
    load_scale_bytes,
    load_scales,
    spread_lanes,
    store_halves,
    store_parts,
    store_scale,
)


@triton.jit
def find_scale(values, amax_floor, FP8: tl.constexpr, IS_POWER: tl.constexpr):
    """What brings the largest finite magnitude to the largest that fp8 is scaled to, never below the least normal number."""
    LARGEST: tl.constexpr = 224.0 if FP8 == 2 else 448.0
    size = tl.abs(values)
    largest = tl.maximum(tl.max(tl.where(size < float("inf"), size, 0.0), 0), amax_floor)
    scale = tl.maximum(tl.div_rn(largest, LARGEST), 1.1754943508222875e-38)
    if IS_POWER:
        scale = ((scale.to(tl.uint32, bitcast=True) + 8388607) & 2139095040).to(tl.float32, bitcast=True)
    return scale


@triton.jit(do_not_specialize=["num_slots", "page_stride", "amax_floor"], do_not_specialize_on_alignment=["slots"])
def write_records(
    first,
    second,
    slots,
    cache,
    first_token,
    second_token,
    cache_row,
    page_stride,
    num_slots,
    amax_floor,
    PAGE: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    LANES: tl.constexpr,
    SHARE: tl.constexpr,
    IS_POWER: tl.constexpr,
    ROUNDS: tl.constexpr,
    PIECE: tl.constexpr,
    SCALE_AT: tl.constexpr,
    SCALE_ROW: tl.constexpr,
    PLAIN_AT: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_BYTES: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    FP8: tl.constexpr,
    IS_BYTE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """A program: SHARE lanes of one token with their scale, or the lanes behind all of these.

    Grid: (tokens, scales + 1). A slot outside 0..num_slots writes nothing.
    """
    token = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    slot = tl.load(slots + token)
    if (slot < 0) | (slot >= num_slots):
        return
    page = slot // PAGE
    offset = slot % PAGE
    first += token * first_token
    second += token * second_token
    lanes_at = find_lanes(cache, page, offset, cache_row, page_stride, PIECE, TILE_TOKENS, TILE_BYTES)
    if number < tl.cdiv(LANES, SHARE):
        lane = number * SHARE + tl.arange(0, BLOCK)
        is_lane = (tl.arange(0, BLOCK) < SHARE) & (lane < LANES)
        value = load_parts(first, second, lane, FIRST, SECOND, is_lane)
        if ROUNDS:
            value = value.to(tl.bfloat16).to(tl.float32)
        scale = find_scale(value, amax_floor, FP8, IS_POWER)
        to = lanes_at + spread_lanes(lane, TILE_TOKENS, TILE_BYTES)
        tl.store(to, encode_fp8(tl.div_rn(value, scale), FP8), mask=is_lane)
        scales_at = find_scales(cache, page, offset, cache_row, page_stride, PIECE, SCALE_AT, SCALE_ROW)
        if IS_BYTE:
            tl.store(scales_at + number, (scale.to(tl.uint32, bitcast=True) >> 23).to(tl.uint8))
        else:
            store_scale(scales_at + 4 * number, scale, IS_ALIGNED)
    else:
        PLAIN: tl.constexpr = FIRST + SECOND - LANES
        if PLAIN > 0:
            column = tl.arange(0, BLOCK_P)
            plain = load_parts(first, second, LANES + column, FIRST, SECOND, column < PLAIN)
            store_halves(lanes_at + PLAIN_AT, plain, column < PLAIN, IS_ALIGNED)
        if IS_BYTE:
            scales_at = find_scales(cache, page, offset, cache_row, page_stride, PIECE, SCALE_AT, SCALE_ROW)
            for spare in tl.static_range((LANES + SHARE - 1) // SHARE, SCALE_ROW):
                tl.store(scales_at + spare, tl.zeros([], tl.uint8))


@triton.jit(do_not_specialize=["num_rows", "page_stride"], do_not_specialize_on_alignment=["rows"])
def read_records(
    cache,
    rows,
    first,
    second,
    cache_row,
    page_stride,
    num_rows,
    PAGE: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    LANES: tl.constexpr,
    SHARE: tl.constexpr,
    PIECE: tl.constexpr,
    SCALE_AT: tl.constexpr,
    SCALE_ROW: tl.constexpr,
    PLAIN_AT: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_BYTES: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    FP8: tl.constexpr,
    IS_BYTE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """A program: SHARE lanes of one row, or the lanes behind them, into two dense parts; zeros where there is no such row.

    Grid: (rows, scales + 1).
    """
    index = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    is_there = (row >= 0) & (row < num_rows)
    row = tl.where(is_there, row, 0)
    page = row // page_stride
    offset = row % page_stride
    if PIECE > 0:
        # Pieces end behind their page's tokens.
        is_there = is_there & (offset < PAGE)
    first += index * FIRST
    second += index * SECOND
    lanes_at = find_lanes(cache, page, offset, cache_row, page_stride, PIECE, TILE_TOKENS, TILE_BYTES)
    if number < tl.cdiv(LANES, SHARE):
        lane = number * SHARE + tl.arange(0, BLOCK)
        is_lane = (tl.arange(0, BLOCK) < SHARE) & (lane < LANES)
        scales_at = find_scales(cache, page, offset, cache_row, page_stride, PIECE, SCALE_AT, SCALE_ROW)
        if IS_BYTE:
            scale = load_scale_bytes(scales_at + number, is_there)
        else:
            scale = load_scales(scales_at + 4 * number, is_there, IS_ALIGNED)
        code = tl.load(lanes_at + spread_lanes(lane, TILE_TOKENS, TILE_BYTES), mask=tl.where(is_there, is_lane, False), other=0)
        value = decode_fp8(code, FP8) * fp8_unit(FP8) * scale
        store_parts(first, second, value, lane, FIRST, SECOND, 0, LANES, is_lane)
    else:
        PLAIN: tl.constexpr = FIRST + SECOND - LANES
        if PLAIN > 0:
            column = tl.arange(0, BLOCK_P)
            one = tl.arange(0, 1)
            there = tl.where(one == 0, is_there, False)
            plain = load_halves(lanes_at + PLAIN_AT + one, there, column, PLAIN, BLOCK_P, IS_ALIGNED)
            plain = tl.reshape(plain, [BLOCK_P]).to(tl.float32)
            store_parts(first, second, plain, LANES + column, FIRST, SECOND, LANES, FIRST + SECOND, column < PLAIN)
