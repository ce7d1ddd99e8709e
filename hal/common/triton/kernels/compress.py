"""Entries made of the states of several tokens: a softmax over them channel by channel, normalised and rotated."""

import triton
import triton.language as tl

from .softmax import LOG2E


@triton.jit
def mix_channels(
    kv,
    score,
    states,
    table,
    channels,
    is_channel,
    token,
    position,
    begin,
    kv_token,
    score_token,
    states_row,
    table_width,
    page_stride,
    num_pages,
    RATIO: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some channels of the entry that a token closes, fp32 [BLOCK]; 0 where is_channel is not set.

    States from row `begin` of the step on are its own, earlier ones the cache's. Of two groups the older gives the first WIDTH of
    its values, the newer the others.
    """
    SPAN: tl.constexpr = RATIO * GROUPS
    peak = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    result = tl.zeros([BLOCK], tl.float32)
    for number in range(0, SPAN):
        source = token - (SPAN - 1) + number
        wanted = position - (SPAN - 1) + number
        lanes = channels
        if GROUPS == 2:
            lanes += tl.where(number >= RATIO, WIDTH, 0)
        is_own = source >= begin
        column = wanted // PAGE
        is_cached = (source < begin) & (wanted >= 0) & (column < table_width)
        page = tl.load(table + column, mask=is_cached, other=-1).to(tl.int64)
        is_cached = is_cached & (page >= 0) & (page < num_pages)
        at = states + (page * page_stride + wanted % PAGE % KEPT) * states_row + lanes
        from_step, from_cache = tl.where(is_own, is_channel, False), tl.where(is_cached, is_channel, False)
        values = tl.load(kv + source * kv_token + lanes, mask=from_step, other=0.0)
        values = tl.where(is_own, values, tl.load(at, mask=from_cache, other=0.0))
        logits = tl.load(score + source * score_token + lanes, mask=from_step, other=float("-inf"))
        cached = tl.load(at + GROUPS * WIDTH, mask=from_cache, other=float("-inf"))
        logits = tl.where(is_own, logits, cached) * LOG2E
        new_peak = tl.maximum(peak, logits)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - base)
        shrink = tl.exp2(peak - base)
        result = result * shrink + weights * values
        total = total * shrink + weights
        peak = new_peak
    return result / tl.where(total == 0.0, 1.0, total)


@triton.jit(
    do_not_specialize=["table_row", "table_width", "page_stride", "num_pages", "eps"],
    do_not_specialize_on_alignment=["entry_slots", "q_start_loc", "req_id", "positions", "block_table", "norm", "cos", "sin"],
)
def mix_states(
    kv,
    score,
    states,
    mixed,
    entry_slots,
    q_start_loc,
    req_id,
    positions,
    block_table,
    norm,
    cos,
    sin,
    kv_token,
    score_token,
    states_row,
    table_row,
    table_width,
    page_stride,
    num_pages,
    eps,
    RATIO: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    KEPT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """A program: the entry that one token closes, into dense fp32 [tokens, WIDTH]; nothing where it closes none. Grid: (tokens,).

    A row of states is GROUPS * WIDTH values and as many scores. The last PAIRS adjacent pairs are rotated.
    """
    token = tl.program_id(0).to(tl.int64)
    if tl.load(entry_slots + token) < 0:
        return
    request = tl.load(req_id + token).to(tl.int64)
    position = tl.load(positions + token)
    begin = tl.load(q_start_loc + request)
    table = block_table + request * table_row
    channels = tl.arange(0, BLOCK)
    is_channel = channels < WIDTH
    entry = mix_channels(
        kv, score, states, table, channels, is_channel, token, position, begin, kv_token, score_token, states_row,
        table_width, page_stride, num_pages, RATIO, GROUPS, WIDTH, PAGE, KEPT, BLOCK,
    )  # fmt: skip
    factor = 1.0
    if HAS_NORM:
        factor = tl.rsqrt(tl.sum(entry * entry, 0) / WIDTH + eps)
        entry = entry * factor * tl.load(norm + channels, mask=is_channel, other=0.0)
    to = mixed + token * WIDTH
    PLAIN: tl.constexpr = WIDTH - 2 * PAIRS
    tl.store(to + channels, entry, mask=channels < PLAIN)
    if PAIRS > 0:
        pairs = tl.arange(0, BLOCK_P)
        is_pair = pairs < PAIRS
        left, right = PLAIN + 2 * pairs, PLAIN + 2 * pairs + 1
        first = mix_channels(
            kv, score, states, table, left, is_pair, token, position, begin, kv_token, score_token, states_row,
            table_width, page_stride, num_pages, RATIO, GROUPS, WIDTH, PAGE, KEPT, BLOCK_P,
        )  # fmt: skip
        second = mix_channels(
            kv, score, states, table, right, is_pair, token, position, begin, kv_token, score_token, states_row,
            table_width, page_stride, num_pages, RATIO, GROUPS, WIDTH, PAGE, KEPT, BLOCK_P,
        )  # fmt: skip
        if HAS_NORM:
            first = first * factor * tl.load(norm + left, mask=is_pair, other=0.0)
            second = second * factor * tl.load(norm + right, mask=is_pair, other=0.0)
        turn_cos = tl.load(cos + token * PAIRS + pairs, mask=is_pair, other=0.0)
        turn_sin = tl.load(sin + token * PAIRS + pairs, mask=is_pair, other=0.0)
        tl.store(to + left, first * turn_cos - second * turn_sin, mask=is_pair)
        tl.store(to + right, second * turn_cos + first * turn_sin, mask=is_pair)
