"""Sparse MLA: each token attends to the cache rows it is given, from several lists at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import Segment
from hal.common.contract.errors import BatchError

from .caches import gather_rows, has_row
from .softmax import attend_keys, empty_result


def sparse_mla(
    q: torch.Tensor, segments: Sequence[Segment], *, kv_lora_rank: int, softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, kv_lora_rank] and lse [tokens, heads]: a row's key is all of it, its value the latent part.

    A number that is no row of its cache is no key.
    """
    _check_segments(q, segments)
    tokens, heads, _ = q.shape
    out, lse = empty_result(tokens, heads, kv_lora_rank)
    for token in range(tokens):
        keys = torch.cat([_read_keys(segment, token) for segment in segments])[:, None]
        out[token], lse[token] = attend_keys(q[token], keys, keys[..., :kv_lora_rank], softmax_scale=softmax_scale)
    return out, lse


def _read_keys(segment: Segment, token: int) -> torch.Tensor:
    rows = segment.rows[token, : max(0, int(segment.valid[token]))]
    return torch.cat(gather_rows(segment.cache, rows[[has_row(segment.cache, row) for row in rows.tolist()]]), dim=1)


def _check_segments(q: torch.Tensor, segments: Sequence[Segment]) -> None:
    if not segments:
        raise BatchError("sparse_mla got no segment; it needs at least one list of rows, which may be empty")
    for cache, rows, valid in segments:
        width = sum(cache.layout.widths)
        if width != q.shape[2]:
            raise BatchError(f"q is {q.shape[2]} wide; the cache's rows hold {width} values")
        if not rows.shape[0] == valid.shape[0] == q.shape[0]:
            raise BatchError(f"{q.shape[0]} query tokens with {rows.shape[0]} lists of rows and {valid.shape[0]} counts")
