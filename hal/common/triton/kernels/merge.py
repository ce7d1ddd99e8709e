"""Joining results that were computed apart: parts of one call, two states, a sink."""

import triton
import triton.language as tl

from .softmax import LOG2E, sink_share


@triton.jit(
    do_not_specialize=["num_parts", "num_heads", "part_part", "lse_part"],
    do_not_specialize_on_alignment=["lse", "sink", "out_lse"],
)
def join_parts(
    parts,
    lse,
    sink,
    out,
    out_lse,
    part_part,
    part_token,
    part_head,
    lse_part,
    lse_token,
    out_token,
    out_head,
    out_lse_token,
    num_parts,
    num_heads,
    WIDTH: tl.constexpr,
    HAS_LSE: tl.constexpr,
    HAS_SINK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: one head of one token over all parts. Grid: (tokens * heads,)."""
    program = tl.program_id(0)
    token = (program // num_heads).to(tl.int64)
    head = (program % num_heads).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    first_log = lse + token * lse_token + head
    peak = float("-inf")
    at_log = first_log
    for _ in range(0, num_parts):
        peak = tl.maximum(peak, tl.load(at_log))
        at_log += lse_part
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = 0.0
    result = tl.zeros([BLOCK], tl.float32)
    at_log = first_log
    at = parts + token * part_token + head * part_head + columns
    for _ in range(0, num_parts):
        weight = tl.exp2((tl.load(at_log) - base) * LOG2E)
        result += weight * tl.load(at, mask=columns < tl.where(weight > 0.0, WIDTH, 0), other=0.0)
        total += weight
        at_log += lse_part
        at += part_part
    divisor = tl.where(total == 0.0, 1.0, total)
    logs = peak + tl.log2(divisor) * 0.6931471805599453
    result = result / divisor
    if HAS_SINK:
        result = result * sink_share(logs, tl.load(sink + head))
    to = out + token * out_token + head * out_head + columns
    tl.store(to, result.to(out.dtype.element_ty), mask=columns < WIDTH)
    if HAS_LSE:
        tl.store(out_lse + token * out_lse_token + head, logs)


@triton.jit(do_not_specialize=["num_rows", "num_heads"], do_not_specialize_on_alignment=["lse_a", "lse_b", "lse"])
def merge_pair(
    out_a,
    lse_a,
    out_b,
    lse_b,
    out,
    lse,
    a_token,
    a_head,
    lse_a_token,
    lse_a_head,
    b_token,
    b_head,
    lse_b_token,
    lse_b_head,
    num_rows,
    num_heads,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: ROWS (token, head) pairs; out and lse are dense. Grid: (row tiles,)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    is_live = row < num_rows
    token = (row // num_heads).to(tl.int64)
    head = (row % num_heads).to(tl.int64)
    log_a = tl.load(lse_a + token * lse_a_token + head * lse_a_head, mask=is_live, other=float("-inf"))
    log_b = tl.load(lse_b + token * lse_b_token + head * lse_b_head, mask=is_live, other=float("-inf"))
    # A comparison with NaN is false, so this holds for finite values alone.
    has_a = tl.abs(log_a) < float("inf")
    has_b = tl.abs(log_b) < float("inf")
    log_a = tl.where(has_a, log_a, float("-inf"))
    log_b = tl.where(has_b, log_b, float("-inf"))
    peak = tl.maximum(log_a, log_b)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weight_a = tl.exp2((log_a - base) * LOG2E)
    weight_b = tl.exp2((log_b - base) * LOG2E)
    total = weight_a + weight_b
    mask = (columns < WIDTH)[None, :]
    at_a = out_a + (token * a_token + head * a_head)[:, None] + columns[None, :]
    at_b = out_b + (token * b_token + head * b_head)[:, None] + columns[None, :]
    a = tl.load(at_a, mask=mask & (is_live & has_a)[:, None], other=0.0).to(tl.float32)
    b = tl.load(at_b, mask=mask & (is_live & has_b)[:, None], other=0.0).to(tl.float32)
    divisor = tl.where(total == 0.0, 1.0, total)
    merged = (a * weight_a[:, None] + b * weight_b[:, None]) / divisor[:, None]
    both = has_a & has_b
    merged = tl.where(both[:, None], merged, tl.where(has_a[:, None], a, b))
    to = out + row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    tl.store(to, merged.to(out.dtype.element_ty), mask=mask & is_live[:, None])
    joined = peak + tl.log2(divisor) * 0.6931471805599453
    tl.store(lse + row, tl.where(both, joined, peak), mask=is_live)


@triton.jit(do_not_specialize=["num_rows", "num_heads"], do_not_specialize_on_alignment=["lse", "sink"])
def scale_by_sink(
    out,
    lse,
    sink,
    result,
    out_token,
    out_head,
    lse_token,
    lse_head,
    num_rows,
    num_heads,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program: ROWS (token, head) pairs; result is dense. Grid: (row tiles,)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    is_live = row < num_rows
    token = (row // num_heads).to(tl.int64)
    head = (row % num_heads).to(tl.int64)
    log = tl.load(lse + token * lse_token + head * lse_head, mask=is_live, other=float("-inf"))
    logit = tl.load(sink + head, mask=is_live, other=0.0).to(tl.float32)
    has_keys = log > float("-inf")
    share = sink_share(log, logit)
    mask = (columns < WIDTH)[None, :] & is_live[:, None]
    at = out + (token * out_token + head * out_head)[:, None] + columns[None, :]
    value = tl.load(at, mask=mask & has_keys[:, None], other=0.0).to(tl.float32)
    to = result + row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    tl.store(to, (value * share[:, None]).to(result.dtype.element_ty), mask=mask)
