"""Cache rows of the token ids that an indexer chose."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["width", "table_width", "rank", "table_row", "page_stride"],
    do_not_specialize_on_alignment=["req_id", "block_table", "seq_lens", "valid"],
)
def find_rows(
    topk,
    req_id,
    block_table,
    seq_lens,
    rows,
    valid,
    topk_token,
    table_row,
    page_stride,
    width,
    table_width,
    rank,
    PAGE: tl.constexpr,
    RANKS: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: one token's list, kept in order and closed up to the left; rows is dense. Grid: (tokens,).

    A position belongs to rank position // RUN % RANKS, which stores it at its place among its own.
    """
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(req_id + token).to(tl.int64)
    seq_len = tl.load(seq_lens + request)
    count = 0
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        position = tl.load(topk + token * topk_token + column, mask=column < width, other=-1)
        is_found = (position >= 0) & (position < seq_len)
        position = tl.where(is_found, position, 0)
        if RANKS > 1:
            is_found = is_found & (position // RUN % RANKS == rank)
            position = position // (RANKS * RUN) * RUN + position % RUN
        at = position // PAGE
        is_found = is_found & (at < table_width)
        page = tl.load(block_table + request * table_row + at, mask=is_found, other=-1)
        is_found = is_found & (page >= 0)
        row = page.to(tl.int64) * page_stride + position % PAGE
        ones = is_found.to(tl.int32)
        place = count + tl.cumsum(ones, 0) - 1
        tl.store(rows + token * width + place, row.to(tl.int32), mask=is_found)
        count += tl.sum(ones, 0)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        nothing = tl.full([BLOCK], -1, tl.int32)
        tl.store(rows + token * width + column, nothing, mask=(column >= count) & (column < width))
    tl.store(valid + token, count)
