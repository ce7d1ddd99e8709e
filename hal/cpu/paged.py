"""Attention over a paged cache, request by request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.errors import LayoutError
from hal.common.contract.layouts import Layout
from hal.common.contract.masking import Masking

from .attend import attend_request, attend_single, group_heads, scale_queries
from .cache import read_located
from .checks import check_floats
from .mask import make_mask
from .results import prepare_results
from .spans import find_spans

_HEADS = ("kv", "kv_fp8")
_LATENTS = ("latent", "latent_fp8", "fp8_ds_mla")


def attend_pages(
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    masking: Masking,
    softmax_scale: float,
    need_lse: bool,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, v_head_dim] and lse of every query over its request's pages.

    A batch's own key ranges, where it has some, take the rule's place.
    """
    kv_heads, width, value_width = _widths(cache.layout)
    if q.dim() != 3 or not (q.is_floating_point() and q.is_cpu):
        check_floats("q", q, 3)
    _check_query(q, kv_heads, width)
    views = None if cache.layout.is_quantised else _split_heads(cache.layout.name, cache.rows, cache.parts)
    out, lse = prepare_results(q, value_width, need_lse, out)
    if not q.shape[1]:
        return out, lse
    lone = group_heads(q, kv_heads)
    queries = None
    for span in find_spans(cache, batch, make_mask(masking), q.shape[0]):
        begin, end = span.begin, span.end
        if span.rows is None:
            out[begin:end].zero_()
            continue
        if views is not None and isinstance(span.rows, slice):
            k, v = views[0][span.rows], views[1][span.rows]
        else:
            k, v = _read_heads(cache, span.rows)
        if end - begin == 1:
            # A lone query sees the whole span of keys that its mask leaves, so nothing is hidden in it.
            attend_single(lone[begin], k, v, softmax_scale, masking.softcap, out[begin], None if lse is None else lse[begin])
            continue
        if queries is None:
            queries = scale_queries(q, kv_heads, softmax_scale)
        attend_request(
            queries[begin:end],
            k,
            v,
            span.mask,
            span.first,
            masking.softcap,
            out[begin:end],
            None if lse is None else lse[begin:end],
        )
    return out, lse


def _widths(layout: Layout) -> tuple[int, int, int]:
    """KV heads, their keys' width and their values': a latent row is one head, its value the first part."""
    if layout.name in _LATENTS:
        return 1, sum(layout.widths), layout.widths[0]
    if layout.name in _HEADS:
        (kv_heads, width), (_, value_width) = layout.parts
        return kv_heads, width, value_width
    raise LayoutError(f"paged attention reads layouts {', '.join((*_HEADS, *_LATENTS))}, not {layout.name!r}")


def _read_heads(cache: KVCache, where: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K [rows, kv_heads, head_dim] and V of some rows, dequantised."""
    rows = read_located(cache, where)
    parts = cache.layout.unpack(rows, cache.scale)
    if cache.layout.is_quantised and cache.layout.name in _LATENTS:
        rows = torch.cat(parts, dim=1)
        parts = rows.split(cache.layout.widths, dim=1)
    return _split_heads(cache.layout.name, rows, parts)


def _split_heads(name: str, rows: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return (rows.unsqueeze(1), parts[0].unsqueeze(1)) if name in _LATENTS else (parts[0], parts[1])


def _check_query(q: torch.Tensor, heads: int, width: int) -> None:
    if q.shape[2] != width or q.shape[1] % heads:
        raise LayoutError(
            f"queries have {q.shape[1]} heads of {q.shape[2]}; the cache holds {heads} KV heads with keys of {width}, "
            "which must divide the heads and equal the width"
        )
