"""What every attention kernel shares: products of tiles, masked loads, one step of a running softmax."""

import triton
import triton.language as tl

# Kernels take powers of two: exp(x) is exp2(x * LOG2E).
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def multiply(a, b, total):
    """total + a @ b in fp32; fp32 operands are not rounded to a shorter type first."""
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def load_rows(starts, is_there, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A tile [rows, BLOCK] from the rows' addresses; zeros for absent rows, whose memory is not touched, and past WIDTH."""
    if WIDTH == BLOCK:
        return tl.load(starts[:, None] + columns[None, :], mask=is_there[:, None], other=0.0)
    mask = is_there[:, None] & (columns < WIDTH)[None, :]
    return tl.load(starts[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def cap_scores(scores, softcap):
    """softcap * tanh(scores / softcap), by an exponential: device libraries name their tanh differently."""
    grown = tl.exp2(scores * (2.0 * LOG2E / softcap))
    return softcap * (1.0 - 2.0 / (grown + 1.0))


@triton.jit
def fold_tile(scores, is_seen, peak, total):
    """A tile's weights [rows, keys], the new maximum and sum [rows], and the factor for what was added up before.

    scores are in units of log2(e), so that exp2 serves.
    """
    scores = tl.where(is_seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen nothing has a maximum of -inf, and -inf - -inf would be NaN.
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    return weights, new_peak, total * shrink + tl.sum(weights, 1), shrink


@triton.jit
def sink_share(lse, logit):
    """The share of a row's denominator that is not its sink's, a logit; 0 for rows that saw nothing."""
    has_keys = lse > float("-inf")
    gap = tl.where(has_keys, logit - lse, 0.0)
    return tl.where(has_keys, 1.0 / (1.0 + tl.exp2(gap * LOG2E)), 0.0)


@triton.jit
def finish_rows(result, peak, total):
    """The quotient and its natural LSE; 0 and -inf for rows that saw nothing."""
    is_empty = total == 0.0
    divisor = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("-inf"), (peak + tl.log2(divisor)) * 0.6931471805599453)
    return result / divisor[:, None], lse
