"""FlashAttention 2, 3 and 4 and the fork, with the constraints their host code states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from hal.testing.stand_ins.attend import (
    Rule,
    attend_batch,
    read_pages,
    require,
    require_dense_heads,
    require_dtype,
    require_int32,
)

Functions = Mapping[str, Callable[..., object]]
HALF = (torch.float16, torch.bfloat16)
GATHER_HEADS = (8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where keys are: pages and a table, or end to end; lengths per request."""

    k: torch.Tensor
    v: torch.Tensor
    lengths: list[int]
    starts: list[int] | None = None
    table: torch.Tensor | None = None

    def fetch(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A request's keys and values [length, kv_heads, width]."""
        length = self.lengths[request]
        if self.table is not None:
            size = self.k.shape[1]
            return tuple(read_pages(part, self.table[request], length, size) for part in (self.k, self.v))  # type: ignore[return-value]
        start = self.starts[request] if self.starts is not None else 0
        return self.k[start : start + length], self.v[start : start + length]


def make_second(arch: str, release: str) -> Functions:
    """flash_attn: sm80 and newer, equal widths up to 256, pages of 256, an LSE of +inf in empty rows."""
    del arch, release

    def varlen(a: SimpleNamespace) -> object:
        require_int32(cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_k=a.cu_seqlens_k, block_table=a.block_table)
        if a.block_table is not None:
            require(a.k.shape[1] % 256 == 0, f"Paged KV cache block size must be divisible by 256, is {a.k.shape[1]}")
        _require_plain(a.q, a.k, a.v)
        keys = _contiguous_or_paged(a, _lengths(a.cu_seqlens_k), a.block_table)
        out, lse = _attend(a, a.q, keys, _window(a.causal, a.window_size), math.inf)
        return (out, lse, None) if a.return_attn_probs else out

    return {"flash_attn_varlen_func": varlen}


def make_third(arch: str, release: str) -> Functions:
    """flash_attn_interface: compute capability 9.x, any page size, MLA beside a head of at most 64."""
    del release

    def paged(a: SimpleNamespace) -> object:
        require(arch == "sm_90", f"FA3 runs on compute capability 9.x, not on {arch}")
        require(a.page_table is not None and a.cu_seqlens_q is not None, "this stand-in is for paged, packed batches")
        require(a.cu_seqlens_k_new is None, "cu_seqlens_k is not allowed together with a page table")
        require(a.max_seqlen_q is not None, "max_seqlen_q must be given with cu_seqlens_q")
        require_int32(cache_seqlens=a.cache_seqlens, page_table=a.page_table, cu_seqlens_q=a.cu_seqlens_q)
        keys = Keys(k=a.k_cache, v=a.v_cache, lengths=a.cache_seqlens.tolist(), table=a.page_table)
        out, lse = _attend_third(a, keys)
        return (out, lse) if a.return_softmax_lse else out

    def varlen(a: SimpleNamespace) -> object:
        require(arch == "sm_90", f"FA3 runs on compute capability 9.x, not on {arch}")
        require_int32(cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_k=a.cu_seqlens_k)
        keys = Keys(k=a.k, v=a.v, lengths=_lengths(a.cu_seqlens_k), starts=a.cu_seqlens_k.tolist())
        out, lse = _attend_third(a, keys)
        return (out, lse) if a.return_attn_probs else out

    return {"flash_attn_with_kvcache": paged, "flash_attn_varlen_func": varlen}


def make_fourth(arch: str, release: str) -> Functions:
    """flash_attn.cute: windows without a bound are None, MLA by gathered rows on compute capability 10.x."""
    del release

    def varlen(a: SimpleNamespace) -> object:
        require(all(side is None or side >= 0 for side in a.window_size), f"window_size {a.window_size}: no bound is None")
        if a.gather_kv_indices is not None:
            out, lse = _gather(arch, a, a.qv)
            return out, lse if a.return_lse else None
        out, lse = _attend_fourth(arch, a, a.page_table)
        return out, lse if a.return_lse else None

    return {"flash_attn_varlen_func": varlen}


def make_fork(arch: str, release: str) -> Functions:
    """vllm_flash_attn: one function for three generations, its own parameter order and names."""
    del release

    def varlen(a: SimpleNamespace) -> object:
        require(a.fa_version in _generations(arch), f"fa_version {a.fa_version} does not run on {arch}")
        if a.gather_kv_indices is not None:
            require(a.fa_version == 4, "only fa_version 4 gathers")
            out, lse = _gather(arch, a, a.q_v)
            return (out, lse) if a.return_softmax_lse else out
        require((a.cu_seqlens_k is None) != (a.seqused_k is None), "exactly one of cu_seqlens_k and seqused_k")
        require(a.block_table is None or a.seqused_k is not None, "block_table needs seqused_k")
        require_int32(cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_k=a.cu_seqlens_k, seqused_k=a.seqused_k, block_table=a.block_table)
        lengths = _lengths(a.cu_seqlens_k) if a.seqused_k is None else a.seqused_k.tolist()
        keys = _contiguous_or_paged(a, lengths, a.block_table)
        left, right = (-1, -1) if a.window_size is None else a.window_size
        rule = _window(a.causal, (left, right))
        if a.fa_version == 2:
            require(a.q_v is None, "only fa_version 3 and 4 take q_v")
            require(a.block_table is None or a.k.shape[1] % 16 == 0, f"pages of 16, not of {a.k.shape[1]}")
            _require_plain(a.q, a.k, a.v)
            out, lse = _attend(a, a.q, keys, rule, math.inf)
        else:
            out, lse = _attend_latent(a, keys, rule, a.q_v)
        if a.out is not None:
            require_dense_heads(out=a.out)
            out = a.out.copy_(out)
        return (out, lse) if a.return_softmax_lse else out

    return {"flash_attn_varlen_func": varlen}


def _generations(arch: str) -> tuple[int, ...]:
    major = int(arch.removeprefix("sm_")) // 10
    return (2, *([3] if major == 9 else []), *([4] if major in (9, 10, 11) else []))


def _lengths(starts: torch.Tensor) -> list[int]:
    return (starts[1:] - starts[:-1]).tolist()


def _contiguous_or_paged(a: SimpleNamespace, lengths: list[int], table: torch.Tensor | None) -> Keys:
    starts = None if table is not None else a.cu_seqlens_k.tolist()
    return Keys(k=a.k, v=a.v, lengths=lengths, starts=starts, table=table)


def _window(causal: bool, window: tuple[int, int]) -> Rule:
    left, right = window
    require(left is not None and right is not None, "window_size holds integers; -1 is no bound")
    return Rule(causal=causal, left=None if left < 0 else left, right=None if right < 0 else right)


def _require_plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    require_dtype(HALF, q=q, k=k, v=v)
    _require_aligned(q, k, v)
    width = q.shape[-1]
    require(width == k.shape[-1] == v.shape[-1], f"widths {width}, {k.shape[-1]}, {v.shape[-1]} must be equal")
    require(width <= 256 and width % 8 == 0, f"head dimension {width} must be a multiple of 8 up to 256")


def _attend(a: SimpleNamespace, q: torch.Tensor, keys: Keys, rule: Rule, empty_lse: float) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse [heads, tokens]."""
    _require_scale(a)
    starts = a.cu_seqlens_q.tolist()
    longest = max((stop - start for start, stop in pairwise(starts)), default=0)
    require(a.max_seqlen_q >= longest, f"max_seqlen_q {a.max_seqlen_q} below the longest query, {longest}")
    given = getattr(a, "max_seqlen_k", None)
    require(given is None or given >= max(keys.lengths, default=0), f"max_seqlen_k {given} below the longest keys")
    out, lse = attend_batch(
        q,
        starts,
        keys.fetch,
        rule,
        softmax_scale=a.softmax_scale,
        softcap=a.softcap,
        value_width=keys.v.shape[-1],
        empty_lse=empty_lse,
    )
    return out, lse.t().contiguous()


def _require_scale(a: SimpleNamespace) -> None:
    # Not a constraint of the library: its default fits no MLA head, and differs between generations.
    require(a.softmax_scale is not None, "softmax_scale was left to the library")


def _attend_third(a: SimpleNamespace, keys: Keys) -> tuple[torch.Tensor, torch.Tensor]:
    return _attend_latent(a, keys, _window(a.causal, a.window_size), a.qv)


def _attend_latent(a: SimpleNamespace, keys: Keys, rule: Rule, qv: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if qv is None:
        _require_plain(a.q, keys.k, keys.v)
        return _attend(a, a.q, keys, rule, -math.inf)
    require_dtype(HALF, q=a.q, qv=qv, k=keys.k, v=keys.v)
    _require_aligned(a.q, qv, keys.k, keys.v)
    require(a.q.shape[-1] == keys.k.shape[-1], f"widths {a.q.shape[-1]} and {keys.k.shape[-1]} must be equal")
    require(8 <= a.q.shape[-1] <= 64 and a.q.shape[-1] % 8 == 0, f"with q_v the head is 8 to 64 wide, not {a.q.shape[-1]}")
    require(qv.shape[-1] == keys.v.shape[-1], f"q_v is {qv.shape[-1]} wide, the values {keys.v.shape[-1]}")
    require(256 <= qv.shape[-1] <= 512, f"with q_v values are 256 to 512 wide, not {qv.shape[-1]}")
    joined = _JoinedKeys(keys)
    return _attend(a, torch.cat([a.q, qv], dim=-1), joined, rule, -math.inf)  # type: ignore[arg-type]


class _JoinedKeys:
    """Keys whose width is that of the plain head and of the values together: what a query with a latent part scores."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.lengths, self.v = keys.lengths, keys.v

    def fetch(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A request's joined keys and its values."""
        k, v = self._keys.fetch(request)
        return torch.cat([k, v], dim=-1), v


def _attend_fourth(arch: str, a: SimpleNamespace, table: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    require(a.qv is None, f"this stand-in has MLA by gathered rows alone ({arch})")
    require_dtype((torch.bfloat16,), q=a.q, k=a.k, v=a.v)
    require_int32(cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_k=a.cu_seqlens_k, seqused_k=a.seqused_k, page_table=table)
    _require_aligned(a.q, a.k, a.v)
    widths = a.q.shape[-1], a.v.shape[-1]
    plain = widths[0] == widths[1] and 8 <= widths[0] <= 128 and widths[0] % 8 == 0
    require(plain or widths in ((192, 128), (256, 256)), f"head widths {widths}")
    lengths = a.seqused_k.tolist() if a.seqused_k is not None else _lengths(a.cu_seqlens_k)
    left, right = a.window_size
    return _attend(a, a.q, _contiguous_or_paged(a, lengths, table), Rule(causal=a.causal, left=left, right=right), -math.inf)


def _require_aligned(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        require_dense_heads(tensor=tensor)
        strides = [s for s, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if size > 1]
        offsets = [tensor.storage_offset(), *strides]
        require(all(offset * tensor.element_size() % 16 == 0 for offset in offsets), f"not aligned to 16 bytes: {offsets}")


def _gather(arch: str, a: SimpleNamespace, qv: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse [tokens, heads] over gathered rows."""
    require(arch in ("sm_100", "sm_103", "sm_110"), f"q_v needs compute capability 10.x or 11.x, not {arch}")
    require(qv is not None, "gather_kv_indices is only supported with q_v")
    _require_scale(a)
    rows, latent = a.gather_kv_indices, _not_none(qv)
    require_dtype((torch.bfloat16,), q=a.q, qv=qv, k=a.k, v=a.v)
    require_int32(gather=rows, cu_seqlens_q=a.cu_seqlens_q, cu_seqlens_k=a.cu_seqlens_k, seqused_k=a.seqused_k)
    _require_aligned(a.q, latent, a.k, a.v)
    require(rows.shape[-1] % 128 == 0, f"gather_kv_indices: {rows.shape[-1]} columns are no multiple of 128")
    require(rows.shape[:-1] == latent.shape[:-2], "one list of rows per query")
    require((a.q.shape[-1], latent.shape[-1], a.v.shape[-1]) == (64, 512, 512), "widths are 64 beside 512")
    require(a.k.shape[1] == 1, "one KV head")
    require(a.q.shape[1] in GATHER_HEADS, f"{a.q.shape[1]} heads, compiled for {GATHER_HEADS}")
    require(not a.causal, "a causal bound would cut flat rows")
    require(getattr(a, "page_table", None) is None and getattr(a, "block_table", None) is None, "no pages with gathered rows")
    window = (None, None) if a.window_size is None else a.window_size
    require(tuple(window) == (None, None) and not a.softcap, "neither window nor softcap with gathered rows")
    require(a.cu_seqlens_q.tolist() == list(range(a.q.shape[0] + 1)) and a.max_seqlen_q == 1, "a sequence of one query each")
    limits = a.seqused_k.tolist()
    chosen = [[row for row in line if 0 <= row < limit] for line, limit in zip(rows.tolist(), limits, strict=True)]

    def fetch(token: int) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = a.k[chosen[token]], a.v[chosen[token]]
        return torch.cat([k, v], dim=-1), v

    joined = torch.cat([a.q, latent], dim=-1)
    starts = a.cu_seqlens_q.tolist()
    rule = Rule(causal=False)
    return attend_batch(
        joined, starts, fetch, rule, softmax_scale=a.softmax_scale, value_width=a.v.shape[-1], empty_lse=-math.inf
    )


def _not_none(value: Any) -> torch.Tensor:
    require(value is not None, "q_v is missing")
    tensor: torch.Tensor = value
    return tensor
