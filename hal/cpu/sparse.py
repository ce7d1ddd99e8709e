"""MLA over chosen cache rows, all segments under one softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.call_values import KVCache, Segment
from hal.common.contract.errors import LayoutError
from hal.common.contract.records import read_records

from .attend import normalise
from .cache import are_rows, find_strangers
from .checks import check_floats, check_integers
from .numbers import compute_dtype
from .results import prepare_results

# Bytes of gathered rows worked on at once: 2048 rows of 576 in fp32 are one token's, which stay in the shared cache between
# the two products; those of several tokens do not, and cost a quarter of the rate.
_GATHER_BYTES = 6 << 20
_LAYOUTS = ("latent", "latent_fp8", "fp8_ds_mla", "compressed")


def attend_rows(
    q: torch.Tensor,
    segments: Sequence[Segment],
    kv_lora_rank: int,
    softmax_scale: float,
    need_lse: bool,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, kv_lora_rank] and lse of q [tokens, heads, lora + rope] over each token's rows that a cache has."""
    _check_segments(q, segments, kv_lora_rank)
    out, lse = prepare_results(q, kv_lora_rank, need_lse, out)
    num_tokens, _, width = q.shape
    if not num_tokens:
        return out, lse
    dtype = compute_dtype(q.dtype)
    scaled = q.to(dtype) * softmax_scale
    counts = torch.stack([valid.clamp(min=0, max=rows.shape[1]) for _, rows, valid in segments]).tolist()
    longest = max(1, max(sum(column) for column in zip(*counts, strict=True)))
    step = max(1, _GATHER_BYTES // (longest * width * dtype.itemsize))
    for begin in range(0, num_tokens, step):
        end = min(begin + step, num_tokens)
        keys, hidden = _gather(segments, [column[begin:end] for column in counts], begin, end, dtype)
        if keys is None:
            out[begin:end].zero_()
            continue
        scores = torch.bmm(scaled[begin:end], keys.transpose(1, 2))
        if hidden is not None:
            scores.masked_fill_(hidden[:, None, :], float("-inf"))
        weights, logs = normalise(scores, need_lse, may_be_empty=hidden is not None)
        out[begin:end] = torch.bmm(weights, keys[..., :kv_lora_rank])
        if lse is not None and logs is not None:
            lse[begin:end] = logs
    return out, lse


def _check_segments(q: torch.Tensor, segments: Sequence[Segment], kv_lora_rank: int) -> None:
    check_floats("q", q, 3)
    if not segments:
        raise LayoutError("no segment to attend to; give at least one, its rows all -1 where there is none")
    for i, segment in enumerate(segments):
        if not isinstance(segment, Segment):
            raise LayoutError(f"segment {i} is a {type(segment).__name__}; expected Segment(cache, rows, valid)")
        cache, rows, valid = segment
        check_integers(f"rows of segment {i}", rows, 2)
        check_integers(f"valid of segment {i}", valid, 1)
        name, widths = cache.layout.name, cache.layout.widths
        if name not in _LAYOUTS or sum(widths) != q.shape[2] or widths[0] != kv_lora_rank:
            raise LayoutError(
                f"segment {i} is {name!r} with parts {list(widths)}; queries of {q.shape[2]} with kv_lora_rank {kv_lora_rank} "
                f"need one of {', '.join(_LAYOUTS)} with parts {[kv_lora_rank, q.shape[2] - kv_lora_rank]}"
            )
        if rows.shape[0] != q.shape[0] or valid.shape[0] != q.shape[0]:
            raise LayoutError(
                f"segment {i} has rows for {rows.shape[0]} and counts for {valid.shape[0]} tokens; there are {q.shape[0]} queries"
            )


def _gather(
    segments: Sequence[Segment], counts: Sequence[Sequence[int]], begin: int, end: int, dtype: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Keys [tokens, columns, width] of all segments side by side, and which columns hold none (None: all hold one)."""
    keys: list[torch.Tensor] = []
    hidden: list[torch.Tensor | None] = []
    for segment, column in zip(segments, counts, strict=True):
        span = max(column)
        if not span or not segment.cache.num_pages:
            continue
        rows = segment.rows[begin:end, :span]
        empty = None
        # Most calls name rows of the cache alone, which the least and the greatest tell at once.
        if min(column) < span or not are_rows(segment.cache, rows):
            empty = find_strangers(segment.cache, rows).logical_or_(torch.arange(span)[None, :] >= segment.valid[begin:end, None])
            rows = rows.masked_fill(empty, 0)
        gathered = _read_rows(segment.cache, rows.reshape(-1), dtype).unflatten(0, (end - begin, span))
        if empty is not None:
            # A hidden column still multiplies its value by zero, so it must hold something finite: zeros.
            gathered.masked_fill_(empty[..., None], 0)
        keys.append(gathered)
        hidden.append(empty)
    if not keys:
        return None, None
    joined = torch.cat(keys, dim=1) if len(keys) > 1 else keys[0]
    if all(empty is None for empty in hidden):
        return joined, None
    nothing_hidden = [key.new_zeros(key.shape[:2], dtype=torch.bool) for key in keys]
    veils = [whole if empty is None else empty for whole, empty in zip(nothing_hidden, hidden, strict=True)]
    return joined, torch.cat(veils, dim=1)


def _read_rows(cache: KVCache, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values [n, width] of some rows, all parts end to end, dequantised."""
    stored = read_records(cache, rows)
    if cache.layout.is_quantised:
        stored = torch.cat(cache.layout.unpack(stored, cache.scale), dim=1)
    return stored.to(dtype)
