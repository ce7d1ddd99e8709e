"""Softmax attention of one request, tile by tile, so that a tile of scores stays in the processor's cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .mask import Mask, hide_unselected
from .numbers import compute_dtype

# Elements of one tile of scores. Measured on a two-core Xeon: from 1 to 4 MiB of fp32 runs at the same rate, more is slower.
_TILE_ELEMENTS = 1 << 19
_MIN_QUERIES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """An explicit choice of keys: ids int32 [queries, width] local to the request, first_key the id of key 0."""

    ids: torch.Tensor
    first_key: int


def attend_request(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    first_position: int,
    softmax_scale: float,
    softcap: float | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    selected: Selected | None = None,
) -> None:
    """Write out [queries, heads, v_head_dim] and lse [queries, heads] of queries over keys k, v [keys, kv_heads, width].

    first_position: query 0's position counted from key 0; negative where the first queries see nothing.
    """
    num_queries, num_heads, _ = q.shape
    num_keys, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    dtype = compute_dtype(q.dtype)
    keys, values = k.to(dtype).transpose(0, 1), v.to(dtype).transpose(0, 1)
    queries = (q.to(dtype) * softmax_scale).unflatten(1, (num_kv_heads, group)).permute(1, 2, 0, 3)
    tile_queries, tile_heads = _tile(num_queries, num_keys, num_kv_heads, group)
    for begin in range(0, num_queries, tile_queries):
        end = min(begin + tile_queries, num_queries)
        first, last = first_position + begin, first_position + end - 1
        start, stop = mask.key_range(first, last, num_keys)
        hidden = mask.hidden(first, last, start, stop) if stop > start else None
        if selected is not None and stop > start:
            chosen = hide_unselected(selected.ids[begin:end], selected.first_key, start, stop)
            hidden = chosen if hidden is None else hidden | chosen
        for head in range(0, num_kv_heads, tile_heads):
            heads = slice(head, min(head + tile_heads, num_kv_heads))
            result, logs = attend_tile(
                queries[heads, :, begin:end], keys[heads, start:stop], values[heads, start:stop], hidden, softcap
            )
            span = slice(heads.start * group, heads.stop * group)
            out[begin:end, span] = result.permute(2, 0, 1, 3).flatten(1, 2)
            if lse is not None:
                lse[begin:end, span] = logs.permute(2, 0, 1).flatten(1, 2)


def _tile(num_queries: int, num_keys: int, num_kv_heads: int, group: int) -> tuple[int, int]:
    per_query = max(1, num_keys) * group
    queries = min(num_queries, max(_MIN_QUERIES, _TILE_ELEMENTS // per_query))
    heads = max(1, _TILE_ELEMENTS // (per_query * queries))
    return queries, min(heads, num_kv_heads)


def attend_tile(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [kv_heads, group, queries, v_head_dim] and lse; q [kv_heads, group, queries, head_dim] is already scaled.

    hidden broadcasts to [kv_heads, group, queries, keys]. Queries that see no key give 0 and -inf.
    """
    num_kv_heads, group, num_queries, _ = q.shape
    scores = torch.bmm(q.reshape(num_kv_heads, group * num_queries, -1), k.transpose(1, 2))
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.unflatten(1, (group, num_queries))
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    weights, sums, lse = exponentiate(scores)
    result = torch.bmm(weights.flatten(1, 2), v).unflatten(1, (group, num_queries))
    return result.div_(sums), lse


def exponentiate(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """exp(scores - their maximum), in place; the sums [..., 1] to divide by (1 in empty rows), and the lse [...]."""
    if not scores.shape[-1]:
        shape = scores.shape[:-1]
        return scores, scores.new_ones(*shape, 1), scores.new_full(shape, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    # An empty row's maximum is -inf, and -inf - -inf would be NaN.
    scores.sub_(top.masked_fill(top == float("-inf"), 0)).exp_()
    sums = scores.sum(-1, keepdim=True)
    lse = (top + sums.log()).squeeze(-1)
    return scores, sums.masked_fill_(sums == 0, 1), lse
