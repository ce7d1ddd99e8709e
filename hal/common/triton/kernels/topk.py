"""The best columns of a row of scores, and the tokens of chosen pools."""

import triton
import triton.language as tl


@triton.jit
def load_ranks(scores, column, length):
    """Scores as unsigned numbers of the same order, equal for equal scores; NaN ranks as -inf. 0 past the length."""
    value = tl.load(scores + column, mask=column < length, other=0.0)
    value = tl.where(value != value, float("-inf"), value)
    # -0.0 and 0.0 are one score and two bit patterns.
    value = tl.where(value == 0.0, 0.0, value)
    bits = value.to(tl.uint32, bitcast=True)
    rank = tl.where(value < 0.0, ~bits, bits | 0x80000000)
    return tl.where(column < length, rank, 0)


@triton.jit(do_not_specialize=["num_columns", "k", "width", "scores_row"], do_not_specialize_on_alignment=["lengths", "topk"])
def choose_columns(scores, lengths, topk, scores_row, num_columns, k, width, BLOCK: tl.constexpr):
    """A program: one row; its k best columns in ascending order, then -1. topk is dense. Grid: (rows,).

    The k-th best rank is found four bits at a time, from the top: the largest digit that at least k ranks reach. Ranks above
    it are all taken, and of those equal to it the first, until there are k. A row of no more than k columns takes them all.
    """
    row = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.load(lengths + row), num_columns)
    scores += row * scores_row
    topk += row * width
    digits = tl.arange(0, 16).to(tl.uint32)
    limit = tl.full([1], 0, tl.uint32)
    if length > k:
        for step in tl.static_range(8):
            candidates = limit + (digits << (28 - 4 * step))
            reached = tl.zeros([16], tl.int32)
            for first in range(0, length, BLOCK):
                ranks = load_ranks(scores, first + tl.arange(0, BLOCK), length)
                # A rank is never 0, which stands for no column; the candidate 0 is not asked about.
                reached += tl.sum((ranks[None, :] >= candidates[:, None]).to(tl.int32), 1)
            digit = tl.sum(((reached >= k) & (digits > 0)).to(tl.int32), 0)
            limit += digit.to(tl.uint32) << (28 - 4 * step)
    above = 0
    for first in range(0, length, BLOCK):
        above += tl.sum((load_ranks(scores, first + tl.arange(0, BLOCK), length) > limit).to(tl.int32), 0)
    room = k - above
    taken = 0
    equal = 0
    for first in range(0, length, BLOCK):
        column = first + tl.arange(0, BLOCK)
        ranks = load_ranks(scores, column, length)
        is_equal = ((ranks == limit) & (ranks > 0)).to(tl.int32)
        nth = equal + tl.cumsum(is_equal, 0)
        is_best = (ranks > limit) | ((is_equal > 0) & (nth <= room))
        ones = is_best.to(tl.int32)
        tl.store(topk + taken + tl.cumsum(ones, 0) - 1, column, mask=is_best)
        taken += tl.sum(ones, 0)
        equal += tl.sum(is_equal, 0)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        nothing = tl.full([BLOCK], -1, tl.int32)
        tl.store(topk + column, nothing, mask=(column >= taken) & (column < width))


@triton.jit(do_not_specialize=["num_columns", "width"], do_not_specialize_on_alignment=["lengths", "tokens"])
def expand_columns(topk, lengths, tokens, topk_row, num_columns, width, POOL: tl.constexpr, BLOCK: tl.constexpr):
    """A program: one row of pools; their tokens, then those of the open tail, then -1. tokens is dense. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.maximum(tl.load(lengths + row), 0)
    full_pools = length // POOL
    tokens += row * width
    count = 0
    for first in range(0, num_columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        pool = tl.load(topk + row * topk_row + column, mask=column < num_columns, other=-1)
        is_chosen = (pool >= 0) & (pool < full_pools)
        ones = is_chosen.to(tl.int32)
        place = (count + tl.cumsum(ones, 0) - 1) * POOL
        for offset in tl.static_range(POOL):
            tl.store(tokens + place + offset, pool * POOL + offset, mask=is_chosen & (place + offset < width))
        count += tl.sum(ones, 0)
    history = tl.minimum(count * POOL, width)
    used = tl.minimum(history + length - full_pools * POOL, width)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        tail = full_pools * POOL + column - history
        value = tl.where(column < used, tail, -1)
        tl.store(tokens + column, value, mask=(column >= history) & (column < width))
