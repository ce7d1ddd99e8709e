"""Softmax attention of one request, tile by tile, so that a tile of scores stays in the processor's cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from .mask import HiddenBlock, Mask, hide_unselected
from .numbers import compute_dtype
from .ranges import RangeMask

# Elements of one tile of scores: two MiB of fp32, which a current core's second-level cache holds.
_TILE_ELEMENTS = 1 << 19
_MIN_QUERIES = 32
# Queries whose masks are kept while every head passes over them: at most so many, and so many elements of mask.
_BLOCK_QUERIES = 1024
_BLOCK_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """An explicit choice of keys: ids int32 [queries, width] local to the request, first_key the id of key 0."""

    ids: torch.Tensor
    first_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Queries begin..end against keys start..stop, what is hidden from them there, and whether one may see nothing."""

    begin: int
    end: int
    start: int
    stop: int
    hidden: tuple[HiddenBlock, ...]
    may_be_empty: bool


def group_heads(q: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """q [tokens, heads, head_dim] in the type to compute in, as [tokens, kv_heads, heads per KV head, head_dim]."""
    dtype = compute_dtype(q.dtype)
    return (q if q.dtype is dtype else q.to(dtype)).view(q.shape[0], num_kv_heads, q.shape[1] // num_kv_heads, q.shape[2])


def scale_queries(q: torch.Tensor, num_kv_heads: int, softmax_scale: float) -> torch.Tensor:
    """The same, times the scale."""
    return group_heads(q, num_kv_heads) * softmax_scale


@cache
def _nothing(dtype: torch.dtype) -> torch.Tensor:
    """What a product is added to when nothing is to be added; it is never read."""
    with torch.inference_mode(False):
        return torch.zeros((1, 1, 1), dtype=dtype)


def attend_request(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | RangeMask,
    first_position: int,
    softcap: float | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    selected: Selected | None = None,
) -> None:
    """Write out [queries, heads, v_head_dim] and lse [queries, heads] over keys k, v [keys, kv_heads, width].

    q: scale_queries' [queries, kv_heads, group, head_dim]. first_position: query 0's position counted from key 0; negative
    where the first queries see nothing.
    """
    num_queries, num_kv_heads, group, _ = q.shape
    num_keys = k.shape[0]
    keys, values = k.to(q.dtype).transpose(0, 1), v.to(q.dtype).transpose(0, 1)
    queries = q.permute(1, 2, 0, 3)
    tile_queries, tile_heads = _tile_size(num_queries, num_keys, num_kv_heads, group)
    block = min(_BLOCK_QUERIES, _BLOCK_ELEMENTS // max(1, num_keys)) // tile_queries * tile_queries or tile_queries
    for first_query in range(0, num_queries, block):
        last_query = min(first_query + block, num_queries)
        tiles = [
            _make_tile(mask, selected, first_position, begin, min(begin + tile_queries, last_query), num_keys)
            for begin in range(first_query, last_query, tile_queries)
        ]
        # Heads outside, tiles inside: a head's keys and values stay in cache for all the queries of the block.
        for head in range(0, num_kv_heads, tile_heads):
            heads = slice(head, min(head + tile_heads, num_kv_heads))
            span = slice(heads.start * group, heads.stop * group)
            for tile in tiles:
                shown = slice(tile.start, tile.stop)
                result, logs = attend_tile(
                    queries[heads, :, tile.begin : tile.end],
                    keys[heads, shown],
                    values[heads, shown],
                    tile.hidden,
                    softcap,
                    need_lse=lse is not None,
                    may_be_empty=tile.may_be_empty,
                )
                out[tile.begin : tile.end, span] = result.permute(2, 0, 1, 3).flatten(1, 2)
                if lse is not None and logs is not None:
                    lse[tile.begin : tile.end, span] = logs.permute(2, 0, 1).flatten(1, 2)


def attend_single(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    softcap: float | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Write out [heads, v_head_dim] and lse [heads] of one query over keys that it sees all of.

    q: a row of group_heads' [kv_heads, group, head_dim].
    """
    if k.dtype is not q.dtype:
        k, v = k.to(q.dtype), v.to(q.dtype)
    # The product scales on its way, which saves a call per layer.
    scores = torch.baddbmm(_nothing(q.dtype), q, k.permute(1, 2, 0), beta=0, alpha=softmax_scale)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    weights, logs = normalise(scores, need_lse=lse is not None, may_be_empty=False)
    values = v.transpose(0, 1)
    if out.dtype is q.dtype and out.is_contiguous():
        torch.bmm(weights, values, out=out.view(q.shape[0], q.shape[1], v.shape[2]))
    else:
        out.copy_(torch.bmm(weights, values).view(out.shape))
    if lse is not None and logs is not None:
        lse.copy_(logs.view(lse.shape))


def _tile_size(num_queries: int, num_keys: int, num_kv_heads: int, group: int) -> tuple[int, int]:
    per_query = max(1, num_keys) * group
    queries = min(num_queries, max(_MIN_QUERIES, _TILE_ELEMENTS // per_query))
    heads = max(1, _TILE_ELEMENTS // (per_query * queries))
    return queries, min(heads, num_kv_heads)


def _make_tile(
    mask: Mask | RangeMask, selected: Selected | None, first_position: int, begin: int, end: int, num_keys: int
) -> _Tile:
    first, last = first_position + begin, first_position + end - 1
    start, stop = mask.key_range(first, last, num_keys)
    hidden: tuple[HiddenBlock, ...] = ()
    if stop > start:
        hidden = mask.hidden_blocks(first, last, start, stop)
        if selected is not None:
            hidden = (hide_unselected(selected.ids[begin:end], selected.first_key, start, stop), *hidden)
    may_be_empty = selected is not None or mask.may_see_nothing(first)
    return _Tile(begin=begin, end=end, start=start, stop=stop, hidden=hidden, may_be_empty=may_be_empty)


def attend_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: Sequence[HiddenBlock],
    softcap: float | None,
    need_lse: bool,
    may_be_empty: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [kv_heads, group, queries, v_head_dim] and lse; q [kv_heads, group, queries, head_dim] is already scaled.

    A hidden block's bias broadcasts to [kv_heads, group, queries, its columns]. Queries that see no key give 0 and -inf.
    """
    result, lse = _attend_tile(q, k, v, hidden, softcap, need_lse, may_be_empty)
    # Adding -inf and a weight of zero keep finite keys and values out and no others; the sum tells whether there were such.
    if hidden and not math.isfinite(float(result.sum())):
        return _attend_tile(q, k, v, hidden, softcap, need_lse, may_be_empty, has_infinite=True)
    return result, lse


def _attend_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: Sequence[HiddenBlock],
    softcap: float | None,
    need_lse: bool,
    may_be_empty: bool,
    has_infinite: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    num_kv_heads, group, num_queries, _ = q.shape
    scores = torch.bmm(q.reshape(num_kv_heads, group * num_queries, -1), k.transpose(1, 2))
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.unflatten(1, (group, num_queries))
    for columns, bias in hidden:
        if has_infinite:
            scores[..., columns].masked_fill_(bias < 0, float("-inf"))
        else:
            scores[..., columns].add_(bias)
    weights, lse = normalise(scores, need_lse, may_be_empty)
    sum_values = _sum_seen if has_infinite else torch.bmm
    return sum_values(weights.flatten(1, 2), v).unflatten(1, (group, num_queries)), lse


def _sum_seen(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights @ values where a weight of zero keeps NaN and infinities out, too; finite rows are torch.bmm's bit for bit."""
    result = torch.bmm(weights, values.nan_to_num(0.0, 0.0, 0.0))
    counts = (weights != 0).to(weights.dtype)
    for limit in (float("inf"), float("-inf")):
        # NaN is both, and inf - inf is NaN.
        is_reached = torch.bmm(counts, ((values == limit) | values.isnan()).to(weights.dtype)) > 0
        result = torch.where(is_reached, result + limit, result)
    return result


def normalise(scores: torch.Tensor, need_lse: bool, may_be_empty: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Softmax weights of scores [..., keys], zeros in rows that see no key, and the lse [...] where asked for."""
    if not scores.shape[-1]:
        return scores, scores.new_full(scores.shape[:-1], float("-inf")) if need_lse else None
    weights = torch.softmax(scores, dim=-1)
    if not (need_lse or may_be_empty):
        return weights, None
    top = scores.amax(-1)
    is_empty = top == float("-inf")
    if bool(is_empty.any()):
        weights.masked_fill_(is_empty[..., None], 0)
    if not need_lse:
        return weights, None
    # The largest weight is 1 / sum(exp(scores - top)), so its logarithm takes the place of a second pass of exponentials.
    return weights, torch.where(is_empty, top, top - weights.amax(-1).log())
