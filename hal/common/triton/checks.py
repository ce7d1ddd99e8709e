"""What a host can see wrong with a call, and the tensors that its results go to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hal.common.contract.call_values import Segment
from hal.common.contract.errors import BackendError, BatchError, LayoutError

from .stored import LATENTS
from .tiles import Machine, Tile, Widths, choose_tile

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import KVCache


# What lists of rows may be of.
_ROWS = (*LATENTS, "compressed")
# More parts than this cost more to join than they save.
MAX_PARTS = 32


def plain_name(tensor: Any) -> str:
    """A tensor's element type by name, whether it is a tensor or stands in for one."""
    return _plain(tensor.dtype)


@cache
def _plain(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def prepare_results(
    q: torch.Tensor, width: int, need_lse: bool, out: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, width] and lse fp32 [tokens, heads] (None unless asked for), for a kernel to fill.

    LayoutError where a given out has another shape, element type, or a last dimension that is not dense.
    """
    import torch

    shape = (q.shape[0], q.shape[1], width)
    if out is None:
        out = q.new_empty(shape)
    elif tuple(out.shape) != shape or out.dtype != q.dtype or (out.stride(2) != 1 and width > 1):
        raise LayoutError(
            f"out is {out.dtype} {list(out.shape)} with strides {out.stride()}; this call writes {q.dtype} {list(shape)}, "
            "the last dimension dense"
        )
    return out, q.new_empty(shape[:2], dtype=torch.float32) if need_lse else None


def require_tile(machine: Machine, call: str, widths: Widths, dtype: str, rows: int) -> Tile:
    """The tile of a call; BackendError with the reason where the arch can hold none."""
    tile = choose_tile(machine, call, widths, dtype, rows)
    if isinstance(tile, Tile):
        return tile
    raise BackendError(f"no tile of {call!r} fits {machine.arch.name} for {widths} in {dtype}: {tile}")


def check_query(q: torch.Tensor, cache: KVCache) -> None:
    """Raise LayoutError unless this holds: q [tokens, heads, width] as wide as the cache's keys, in its type if it has one."""
    layout = cache.layout
    if layout.name not in ("kv", "kv_fp8", *LATENTS):
        raise LayoutError(f"paged attention reads layouts kv, kv_fp8, {', '.join(LATENTS)}, not {layout.name!r}")
    heads, width = (1, sum(layout.widths)) if layout.name in LATENTS else layout.parts[0]
    if q.dim() != 3 or q.shape[2] != width or q.shape[1] % heads:
        raise LayoutError(
            f"queries have shape {list(q.shape)}; the cache holds {heads} KV heads with keys of {width}, which must divide "
            "the heads and equal the width"
        )
    if not layout.is_quantised and plain_name(q) != layout.dtype:
        raise LayoutError(f"queries are {q.dtype} and the cache is {layout.dtype}; a product needs one element type")


def check_segments(q: torch.Tensor, segments: tuple[Segment, ...], kv_lora_rank: int) -> None:
    """Raise BatchError unless this holds: at least one list, each with a row per query and cache rows as wide as q."""
    if not segments:
        raise BatchError("sparse_mla got no segment; it needs at least one list of rows, which may be empty")
    if q.dim() != 3:
        raise LayoutError(f"q is {q.dtype} {list(q.shape)}; expected [tokens, heads, lora + rope]")
    for segment in segments:
        if not isinstance(segment, Segment):
            raise LayoutError(f"a segment is a {type(segment).__name__}; expected Segment(cache, rows, valid)")
        cache, rows, valid = segment
        width = sum(cache.layout.widths)
        if width != q.shape[2] or not 0 < kv_lora_rank <= width:
            raise BatchError(f"q is {q.shape[2]} wide and kv_lora_rank {kv_lora_rank}; the cache's rows have {width} elements")
        if cache.layout.is_quantised and (cache.layout.name not in _ROWS or cache.layout.widths[0] != kv_lora_rank):
            raise BatchError(
                f"the cache is {cache.layout.name!r} with parts {list(cache.layout.widths)}; kv_lora_rank {kv_lora_rank} needs "
                f"one of {', '.join(_ROWS)} whose first part it is"
            )
        if not rows.shape[0] == valid.shape[0] == q.shape[0]:
            raise BatchError(f"{q.shape[0]} query tokens with {rows.shape[0]} lists of rows and {valid.shape[0]} counts")
        if not cache.layout.is_quantised and plain_name(q) != cache.layout.dtype:
            raise BatchError(f"q is {q.dtype} and a cache {cache.layout.dtype}; a product needs one element type")


def check_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise LayoutError unless this holds: keys and values of as many tokens and heads, queries of the keys' width."""
    has_heads = q.dim() == k.dim() == v.dim() == 3 and k.shape[1]
    if (
        not has_heads
        or k.shape[:2] != v.shape[:2]
        or q.shape[2] != k.shape[2]
        or q.shape[1] % k.shape[1]
        or not q.dtype == k.dtype == v.dtype
    ):
        raise LayoutError(
            f"queries {q.dtype} {list(q.shape)}, keys {k.dtype} {list(k.shape)} and values {v.dtype} {list(v.shape)} do not go "
            "together: one element type, keys and values with as many tokens and heads, queries with the keys' width and a "
            "multiple of their heads"
        )


def count_parts(machine: Machine, programs: int, key_tiles: int) -> int:
    """Into how many parts each program's keys are split, so that a short call fills the device; 1 where it does already."""
    if programs >= machine.programs or key_tiles < 2:
        return 1
    return min(-(-machine.programs // max(1, programs)), key_tiles, MAX_PARTS)
