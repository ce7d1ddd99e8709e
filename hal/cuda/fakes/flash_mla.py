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
    return {"flash_mla_sparse_fwd": lambda a: _attend_rows(a, arch, HEADS), **_record_functions(arch)}


def make_copy(arch: str, release: str) -> Mapping[str, Callable[..., object]]:
    """The copy that an engine ships: fewer heads too on compute capability 9.x."""
    del release
    heads = HEADS_OF_COPY if arch == "sm_90" else HEADS
    return {"flash_mla_sparse_fwd": lambda a: _attend_rows(a, arch, heads), **_record_functions(arch)}


class Schedule:
    """What the library plans when it is first used; any later call must be of the same size."""

    sizes: tuple[int, ...] | None = None


def _record_functions(arch: str) -> Mapping[str, Callable[..., object]]:
    return {"get_mla_metadata": lambda _: (Schedule(), None), "flash_mla_with_kvcache": lambda a: _attend_records(a, arch)}


def _attend_records(a: SimpleNamespace, arch: str) -> object:
    """out [sequences, queries, heads, lora] and the LSE [sequences, heads, queries] over packed records."""
    require(arch in ARCHS, f"no sparse kernels for {arch}")
    require(a.is_fp8_kvcache and not a.causal and a.indices is not None, "sparse decode is over fp8 records, never causal")
    require(a.block_table is None and a.cache_seqlens is None and a.num_splits is None, "neither pages nor splits are given")
    require(a.topk_length is None and a.extra_k_cache is None and a.attn_sink is None, "not available for these records")
    require_dtype((torch.bfloat16,), q=a.q)
    require_int32(indices=a.indices)
    count, queries, heads, width = a.q.shape
    require(count > 0 and queries > 0 and a.indices.shape[2] > 0, "b, s_q and topk must be positive")
    require(heads in HEADS, f"h_q = {heads}, expected one of {HEADS}")
    require((width, a.head_dim_v) == (576, 512), f"d_qk {width} and d_v {a.head_dim_v}")
    require(a.k_cache.dtype == torch.uint8 and a.k_cache.shape[1:] == (64, 1, 656), f"records of shape {list(a.k_cache.shape)}")
    require(a.k_cache.stride(1) == 656 and a.k_cache.stride(3) == 1, "records of a page lie end to end")
    require(tuple(a.indices.shape[:2]) == (count, queries), f"indices of shape {list(a.indices.shape)}")
    require(a.indices.shape[2] % 64 == 0, f"topk {a.indices.shape[2]} is no multiple of 64")
    require(isinstance(a.softmax_scale, float), f"softmax_scale is {a.softmax_scale!r}")
    for name, tensor in (("q", a.q), ("k_cache", a.k_cache)):
        _require_aligned(name, tensor)
    schedule, sizes = a.tile_scheduler_metadata, (count, queries, heads, a.indices.shape[2])
    require(isinstance(schedule, Schedule), "tile_scheduler_metadata is what get_mla_metadata returns")
    require(schedule.sizes in (None, sizes), f"a schedule for {schedule.sizes} in a call of {sizes}")
    schedule.sizes = sizes
    keys = _read_records(a.k_cache)

    def fetch(token: int) -> tuple[torch.Tensor, torch.Tensor]:
        listed = [row for row in a.indices[token // queries, token % queries].tolist() if row != -1]
        require(all(0 <= row < keys.shape[0] for row in listed), f"illegal memory access: records {listed} of {keys.shape[0]}")
        found = keys[listed][:, None]
        return found, found[..., : a.head_dim_v]

    flat = a.q.flatten(0, 1)
    starts, scale = list(range(flat.shape[0] + 1)), a.softmax_scale
    rule = Rule(causal=False)
    out, lse = attend_batch(flat, starts, fetch, rule, softmax_scale=scale, value_width=a.head_dim_v, empty_lse=math.inf)
    return out.unflatten(0, (count, queries)), lse.unflatten(0, (count, queries)).transpose(1, 2).contiguous()


def _read_records(pages: torch.Tensor) -> torch.Tensor:
    """float32 [records, 576]: 512 lanes of e4m3 with a scale for each 128, and 64 of bfloat16."""
    records = pages.flatten(0, 2).contiguous()
    values = records[:, :512].view(torch.float8_e4m3fn).float().unflatten(1, (4, 128))
    scales = records[:, 512:528].contiguous().view(torch.float32)
    rope = records[:, 528:].contiguous().view(torch.bfloat16).float()
    return torch.cat([(values * scales[:, :, None]).flatten(1), rope], dim=1)


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
