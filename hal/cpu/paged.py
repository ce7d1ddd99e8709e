"""Attention over a paged cache, request by request."""

from __future__ import annotations

from dataclasses import replace

import torch

from hal.common.errors import LayoutError
from hal.common.kernels import KVCache, PagedBatch

from .attend import attend_request, attend_single
from .cache import read_request
from .mask import Mask
from .results import prepare_results


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
    for request, length in enumerate(batch.seq_lens.tolist()):
        begin, end = starts[request], starts[request + 1]
        if begin == end or not length:
            continue
        first = length - (end - begin)
        start, stop = mask.key_range(first, length - 1, length)
        keys, values = split_heads(cache, read_request(cache, batch, request, start, stop))
        if end - begin == 1:
            # A lone query sees the whole span of keys that its mask leaves, so nothing is hidden in it.
            attend_single(q[begin], keys, values, softmax_scale, softcap, out[begin], None if lse is None else lse[begin])
            continue
        tokens = slice(begin, end)
        attend_request(
            q[tokens],
            keys,
            values,
            replace(mask, origin=start),
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
