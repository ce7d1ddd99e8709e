"""Rows of a paged cache, written from parts and read back into them."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_slots", "page_stride"], do_not_specialize_on_alignment=["slots"])
def write_rows(
    first,
    second,
    slots,
    cache,
    first_token,
    second_token,
    cache_row,
    page_stride,
    num_slots,
    PAGE: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: BLOCK columns of one token's row, which is FIRST elements of one part and SECOND of the other.

    Grid: (tokens, column tiles). A slot outside 0..num_slots writes nothing.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if (slot < 0) | (slot >= num_slots):
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kind = cache.dtype.element_ty
    value = tl.load(first + token * first_token + column, mask=column < FIRST, other=0.0).to(kind)
    if SECOND > 0:
        is_second = (column >= FIRST) & (column < FIRST + SECOND)
        other = tl.load(second + token * second_token + (column - FIRST), mask=is_second, other=0.0).to(kind)
        value = tl.where(is_second, other, value)
    row = slot // PAGE * page_stride + slot % PAGE
    tl.store(cache + row * cache_row + column, value, mask=column < FIRST + SECOND)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows"])
def read_rows(
    cache,
    rows,
    first,
    second,
    cache_row,
    num_rows,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: BLOCK columns of one row, into two dense parts; zeros where there is no such row.

    Grid: (rows, column tiles).
    """
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + index).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = (row >= 0) & (row < num_rows)
    value = tl.load(cache + row * cache_row + column, mask=column < tl.where(is_there, FIRST + SECOND, 0), other=0.0)
    tl.store(first + index * FIRST + column, value, mask=column < FIRST)
    if SECOND > 0:
        is_second = (column >= FIRST) & (column < FIRST + SECOND)
        tl.store(second + index * SECOND + (column - FIRST), value, mask=is_second)
