"""FlashMLA with the constraints that its host code and its tests' reference state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch

from hal.testing.stand_ins.attend import Rule, attend_batch, require, require_dtype, require_int32

ARCHS = ("sm_90", "sm_100", "sm_103")
HEADS = (64, 128)
HEADS_OF_COPY = (8, 16, 32, 64, 128)
TILE = 128


def make_library(arch: str, release: str) -> Mapping[str, Callable[..., object]]:
    """The library as its repository has it: 64 or 128 heads."""
    del release
    return {"flash_mla_sparse_fwd": lambda a: _attend_rows(a, arch, HEADS)}


def make_copy(arch: str, release: str) -> Mapping[str, Callable[..., object]]:
    """The copy that an engine ships: fewer heads too on compute capability 9.x."""
    del release
    return {"flash_mla_sparse_fwd": lambda a: _attend_rows(a, arch, HEADS_OF_COPY if arch == "sm_90" else HEADS)}


def _attend_rows(a: SimpleNamespace, arch: str, heads: tuple[int, ...]) -> object:
    """out, the largest scores and the LSE [tokens, heads], +inf where a query has no row."""
    require(arch in ARCHS, f"no sparse kernels for {arch}")
    require_dtype((torch.bfloat16,), q=a.q, kv=a.kv)
    require_int32(indices=a.indices, topk_length=a.topk_length)
    tokens, width = a.q.shape[0], a.q.shape[2]
    require(tokens > 0 and a.indices.shape[2] > 0, "s_q and topk must be positive")
    require(a.q.shape[1] in heads, f"h_q = {a.q.shape[1]}, expected one of {heads}")
    require(width in (576, 512) and a.d_v == 512, f"d_qk {width} and d_v {a.d_v}")
    require(a.kv.dim() == 3 and a.kv.shape[1:] == (1, width), f"kv of shape {list(a.kv.shape)}")
    require(tuple(a.indices.shape[:2]) == (tokens, 1), f"indices of shape {list(a.indices.shape)}")
    require(a.indices.shape[2] % TILE == 0, f"topk {a.indices.shape[2]} is no multiple of {TILE}")
    require(a.topk_length is None or a.topk_length.shape == (tokens,), "topk_length is one number a query")
    require(a.attn_sink is None, "this stand-in has no sinks")
    for name, tensor in (("q", a.q), ("kv", a.kv)):
        _require_aligned(name, tensor)
    # Not a constraint of the library: the scale of an MLA head is never that of its latent width.
    require(isinstance(a.sm_scale, float), f"sm_scale is {a.sm_scale!r}")
    lengths = [a.indices.shape[2]] * tokens if a.topk_length is None else a.topk_length.tolist()
    rows = a.kv[:, 0, :]

    def fetch(token: int) -> tuple[torch.Tensor, torch.Tensor]:
        listed = a.indices[token, 0, : lengths[token]].tolist()
        keys = rows[[row for row in listed if 0 <= row < rows.shape[0]]][:, None]
        return keys, keys[..., : a.d_v]

    scale = a.sm_scale
    starts = list(range(tokens + 1))
    out, lse = attend_batch(a.q, starts, fetch, Rule(causal=False), softmax_scale=scale, value_width=a.d_v, empty_lse=math.inf)
    return out, torch.full_like(lse, math.nan), lse


def _require_aligned(name: str, tensor: torch.Tensor) -> None:
    require(tensor.stride(-1) == 1, f"{name} must be dense at its end")
    steps = [step for step, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if size > 1]
    offsets = [tensor.storage_offset(), *steps]
    require(all(step * tensor.element_size() % 16 == 0 for step in offsets), f"{name} is not aligned to 16 bytes: {offsets}")
