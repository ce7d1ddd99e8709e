"""Rows of e4m3 bytes whose scales lie outside the cache, written from parts and read back into them.

A scale is for SHARE lanes of the first part or SECOND_SHARE of the second, whose first scale is number SECOND_AT.
"""

import triton
import triton.language as tl

from .fp8 import decode_fp8, encode_fp8, fp8_unit
from .stored import load_parts, store_parts


@triton.jit
def load_factors(
    scales,
    column,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SHARE: tl.constexpr,
    SECOND_SHARE: tl.constexpr,
    SECOND_AT: tl.constexpr,
):
    """The scale of each column."""
    at = column // SHARE
    if SECOND > 0:
        at = tl.where(column < FIRST, at, SECOND_AT + (column - FIRST) // SECOND_SHARE)
    return tl.load(scales + at, mask=column < FIRST + SECOND, other=1.0)


@triton.jit(do_not_specialize=["num_slots", "page_stride"], do_not_specialize_on_alignment=["slots", "scales"])
def write_codes(
    first,
    second,
    slots,
    scales,
    cache,
    first_token,
    second_token,
    cache_row,
    page_stride,
    num_slots,
    PAGE: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SHARE: tl.constexpr,
    SECOND_SHARE: tl.constexpr,
    SECOND_AT: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: BLOCK columns of one token's row. Grid: (tokens, column tiles). A slot outside 0..num_slots writes nothing."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if (slot < 0) | (slot >= num_slots):
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < FIRST + SECOND
    value = load_parts(first + token * first_token, second + token * second_token, column, FIRST, SECOND, is_there)
    factor = load_factors(scales, column, FIRST, SECOND, SHARE, SECOND_SHARE, SECOND_AT)
    row = slot // PAGE * page_stride + slot % PAGE
    tl.store(cache + row * cache_row + column, encode_fp8(tl.div_rn(value, factor), FP8), mask=is_there)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "scales"])
def read_codes(
    cache,
    rows,
    scales,
    first,
    second,
    cache_row,
    num_rows,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SHARE: tl.constexpr,
    SECOND_SHARE: tl.constexpr,
    SECOND_AT: tl.constexpr,
    FP8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: BLOCK columns of one row, into two dense parts; zeros where there is no such row. Grid: (rows, column tiles)."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + index).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = (row >= 0) & (row < num_rows)
    code = tl.load(cache + row * cache_row + column, mask=column < tl.where(is_there, FIRST + SECOND, 0), other=0)
    factor = load_factors(scales, column, FIRST, SECOND, SHARE, SECOND_SHARE, SECOND_AT)
    value = decode_fp8(code, FP8) * fp8_unit(FP8) * factor
    to_first, to_second = first + index * FIRST, second + index * SECOND
    store_parts(to_first, to_second, value, column, FIRST, SECOND, 0, FIRST + SECOND, column < FIRST + SECOND)
