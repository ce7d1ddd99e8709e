"""Attention over a paged cache: one-token queries together, longer ones request by request."""

from __future__ import annotations

from dataclasses import replace

import torch

from hal.common.errors import LayoutError
from hal.common.kernels import KVCache, PagedBatch

from .attend import attend_request, attend_tile
from .cache import read_request
from .mask import Mask, hide
from .numbers import compute_dtype
from .results import prepare_results

# Padded keys are worth their arithmetic while they are no more than the real ones.
_MAX_PADDING = 2.0


def attend_pages(
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    mask: Mask,
    softmax_scale: float,
    softcap: float | None,
    need_lse: bool,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, v_head_dim] and lse of every query over its request's pages."""
    v_head_dim = _value_width(cache)
    _check_query(q, cache)
    out, lse = prepare_results(q, v_head_dim, need_lse, out)
    starts = batch.query_start_loc.tolist()
    seq_lens = batch.seq_lens.tolist()
    requests = [(i, starts[i], starts[i + 1], seq_lens[i]) for i in range(len(seq_lens)) if starts[i + 1] > starts[i]]
    singles = [(i, begin, length) for i, begin, end, length in requests if end - begin == 1 and length > 0]
    together = len(singles) > 1 and mask.causal and _is_worth_padding(singles, mask)
    if together:
        _attend_singles(q, cache, batch, singles, mask, softmax_scale, softcap, out, lse)
    for i, begin, end, length in requests:
        if together and end - begin == 1 and length > 0:
            continue
        first = length - (end - begin)
        start, stop = mask.key_range(first, length - 1, length)
        keys, values = split_heads(cache, read_request(cache, batch, i, start, stop))
        tokens = slice(begin, end)
        shifted = replace(mask, origin=start)
        attend_request(
            q[tokens],
            keys,
            values,
            shifted,
            first - start,
            softmax_scale,
            softcap,
            out[tokens],
            None if lse is None else lse[tokens],
        )
    return out, lse


def split_heads(cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of rows [keys, width] as K [keys, kv_heads, head_dim] and V; a latent row is one head, its value the first part."""
    if cache.layout.name == "latent":
        return rows.unsqueeze(1), rows[:, : cache.layout.widths[0]].unsqueeze(1)
    keys, values = cache.layout.unpack(rows)
    return keys, values


def _value_width(cache: KVCache) -> int:
    if cache.layout.name == "latent":
        return cache.layout.widths[0]
    if cache.layout.name == "kv":
        return cache.layout.parts[1][1]
    raise LayoutError(f"paged attention reads layouts 'kv' and 'latent', not {cache.layout.name!r}")


def _check_query(q: torch.Tensor, cache: KVCache) -> None:
    layout = cache.layout
    heads, width = (1, layout.width) if layout.name == "latent" else layout.parts[0]
    if q.shape[2] != width or q.shape[1] % heads:
        raise LayoutError(
            f"queries have {q.shape[1]} heads of {q.shape[2]}; the cache holds {heads} KV heads with keys of {width}, "
            "which must divide the heads and equal the width"
        )


def _is_worth_padding(singles: list[tuple[int, int, int]], mask: Mask) -> bool:
    spans = [_span(length, mask) for _, _, length in singles]
    return max(spans) * len(spans) <= _MAX_PADDING * sum(spans)


def _span(length: int, mask: Mask) -> int:
    start, stop = mask.key_range(length - 1, length - 1, length)
    return stop - start


def _attend_singles(
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    singles: list[tuple[int, int, int]],
    mask: Mask,
    softmax_scale: float,
    softcap: float | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    requests, tokens, lengths = (torch.tensor(column) for column in zip(*singles, strict=True))
    spans = torch.tensor([_span(length, mask) for _, _, length in singles])
    width = int(spans.max())
    # Every request's columns end at its last key; those before its first repeat that one and are hidden.
    column = torch.arange(width)[None, :] - (width - spans)[:, None]
    positions = (lengths - spans)[:, None] + column.clamp(min=0)
    hidden = column < 0
    pages = batch.block_table[requests[:, None], positions // cache.block_size].long()
    rows = pages * cache.page_stride + positions % cache.block_size
    gathered = cache.rows.index_select(0, rows.reshape(-1))
    keys, values = split_heads(cache, gathered)
    dtype = compute_dtype(q.dtype)
    count, heads = len(singles), q.shape[1]
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    merged_keys = keys.to(dtype).unflatten(0, (count, width)).transpose(1, 2).flatten(0, 1)
    merged_values = values.to(dtype).unflatten(0, (count, width)).transpose(1, 2).flatten(0, 1)
    picked = (q.index_select(0, tokens).to(dtype) * softmax_scale).reshape(count * kv_heads, group, 1, -1)
    veil = hidden.repeat_interleave(kv_heads, 0)[:, None, None, :]
    blocks = (hide(slice(0, width), veil),) if bool(hidden.any()) else ()
    result, logs = attend_tile(picked, merged_keys, merged_values, blocks, softcap, need_lse=lse is not None)
    out.index_copy_(0, tokens, result.reshape(count, heads, -1).to(out.dtype))
    if lse is not None and logs is not None:
        lse.index_copy_(0, tokens, logs.reshape(count, heads).to(lse.dtype))
