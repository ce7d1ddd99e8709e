"""Joining partial results by their LSE, and the sink."""

from __future__ import annotations

import torch

from hal.common.contract.dense import refuse_shared
from hal.common.contract.errors import LayoutError

from .checks import check_floats

State = tuple[torch.Tensor, torch.Tensor | None]

# Elements merged at once, so that the intermediate results stay in cache.
_PIECE_ELEMENTS = 1 << 16


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result over both key sets [tokens, heads, v_head_dim] and its lse [tokens, heads].

    A side whose lse is -inf, +inf or NaN holds nothing: its out is not looked at, and the other comes back bit for bit.
    """
    _check_states(out_a, lse_a)
    _check_states(out_b, lse_b)
    if out_a.shape != out_b.shape:
        raise LayoutError(f"results {list(out_a.shape)} and {list(out_b.shape)} are not of the same queries; both need one shape")
    step = max(1, _PIECE_ELEMENTS // max(1, out_a[0].numel())) if out_a.shape[0] else 1
    merged, lse = torch.empty_like(out_a, memory_format=torch.contiguous_format), torch.empty_like(lse_a)
    for begin in range(0, out_a.shape[0], step):
        span = slice(begin, begin + step)
        merged[span], lse[span] = _merge(out_a[span], lse_a[span], out_b[span], lse_b[span])
    return merged, lse


def _merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    empty_a, empty_b = ~torch.isfinite(lse_a), ~torch.isfinite(lse_b)
    a = lse_a.masked_fill(empty_a, float("-inf"))
    b = lse_b.masked_fill(empty_b, float("-inf"))
    # Weights are divided by their own sum: a large lse is rounded too coarsely for exp(a - lse) to add up to 1.
    top = torch.maximum(a, b).clamp(min=torch.finfo(a.dtype).min)
    weight_a, weight_b = (a - top).exp(), (b - top).exp()
    total = weight_a + weight_b
    lse = top + total.log()
    merged = (out_a * (weight_a / total).unsqueeze(-1) + out_b * (weight_b / total).unsqueeze(-1)).to(out_a.dtype)
    if bool(empty_a.any()) or bool(empty_b.any()):
        merged = torch.where(empty_b.unsqueeze(-1), out_a, merged)
        merged = torch.where(empty_a.unsqueeze(-1), out_b, merged)
        merged = merged.masked_fill((empty_a & empty_b).unsqueeze(-1), 0)
        lse = torch.where(empty_b, a, torch.where(empty_a, b, lse))
    return merged, lse


def apply_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """out scaled by the share of the denominator that is not the sink's; an empty row gives 0, whatever the sink and out are."""
    _check_states(out, lse)
    check_sink(sink, lse.shape[1])
    share = torch.sigmoid(lse - sink.to(lse.dtype)).unsqueeze(-1)
    # False for NaN, too. Without any key, a sink of -inf would leave a denominator of 0.
    has_keys = (lse > float("-inf")).unsqueeze(-1)
    return torch.where(has_keys, out * share, 0).to(out.dtype)


def add_sink(state: tuple[torch.Tensor, torch.Tensor | None], sink: torch.Tensor | None, need_lse: bool) -> State:
    """A call's out, with its sink where there is one, in place, and its lse, which leaves the sink out, where it is needed."""
    out, lse = state
    if sink is None or lse is None:
        return state
    out.copy_(apply_sink(out, lse, sink))
    return out, lse if need_lse else None


def check_inner_sink(q: torch.Tensor, sink: torch.Tensor, out: torch.Tensor | None) -> None:
    """Raise LayoutError unless this holds: floats for each of the queries' heads, in other memory than out."""
    check_floats("q", q, 3)
    check_sink(sink, q.shape[1])
    refuse_shared(out, sink=sink)


def check_sink(sink: torch.Tensor, heads: int) -> None:
    """Raise LayoutError unless this holds: floats [heads]."""
    check_floats("sink", sink, 1)
    if sink.shape[0] != heads:
        raise LayoutError(f"sink has {sink.shape[0]} entries; the results have {heads} heads")


def _check_states(out: torch.Tensor, lse: torch.Tensor) -> None:
    check_floats("out", out, 3)
    check_floats("lse", lse, 2)
    if out.shape[:2] != lse.shape:
        raise LayoutError(f"out {list(out.shape)} and lse {list(lse.shape)} do not go together; lse needs out's tokens and heads")
