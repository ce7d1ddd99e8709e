"""Opening a plan: caches of hal's own, or the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .attention import Attention, CacheKey, find_torch_device, open_backends
from .errors import CapacityError, InputError, LayoutError, NotBuiltError
from .kernels import KVCache

if TYPE_CHECKING:
    from .plan import CacheSpec, Plan


def open_attention(plan: Plan, num_blocks: int | None, group: Any) -> Attention:
    """An Attention on zero-filled caches of its own; CapacityError where they would not fit."""
    _check_ranks(plan, group)
    blocks = plan.default_num_blocks() if num_blocks is None else num_blocks
    if blocks < 1:
        raise InputError(f"num_blocks is {blocks}; expected at least 1")
    device, where = plan.device, find_torch_device(plan)
    needed = blocks * plan.page_bytes
    if device.memory_bytes is not None and needed > device.memory_bytes:
        fit = device.memory_bytes // max(1, plan.page_bytes)
        raise CapacityError(
            f"{blocks} pages take {needed} bytes and {device.target} has {device.memory_bytes}; at most {fit} pages fit"
        )
    # A library that does not load is found out before any memory is taken.
    opened = open_backends(plan)
    caches: dict[CacheKey, KVCache] = {}
    for spec in plan.cache_specs():
        dtype = getattr(torch, spec.layout.dtype)
        storage = torch.zeros(spec.shape(blocks), dtype=dtype, device=where)
        caches[spec.key] = KVCache(storage, spec.layout, spec.block_size, spec.block_size)
    return Attention(plan, opened, caches, blocks)


def bind_attention(plan: Plan, tensors: Mapping[CacheKey, torch.Tensor], group: Any) -> Attention:
    """An Attention on the engine's tensors; LayoutError names the spec and the tensor that do not fit."""
    _check_ranks(plan, group)
    specs = {spec.key: spec for spec in plan.cache_specs()}
    if specs.keys() != tensors.keys():
        raise LayoutError(
            f"caches are missing for {sorted(map(str, specs.keys() - tensors.keys()))} "
            f"and unknown for {sorted(map(str, tensors.keys() - specs.keys()))}; plan.cache_specs() has the keys"
        )
    counts = {key: tensor.shape[0] for key, tensor in tensors.items()}
    if len(set(counts.values())) > 1:
        raise LayoutError(f"every cache needs as many pages, got {counts}")
    caches = {key: _bind_cache(specs[key], tensor, plan) for key, tensor in tensors.items()}
    return Attention(plan, open_backends(plan), caches, next(iter(counts.values()), 0))


def _bind_cache(spec: CacheSpec, tensor: torch.Tensor, plan: Plan) -> KVCache:
    expected = torch.device(plan.device.torch_device or "meta").type
    if tensor.device.type != expected:
        raise LayoutError(f"the cache of {spec.key} is on {tensor.device}; the plan runs on {expected}")
    rows = tensor.shape[1] if tensor.dim() == 3 else spec.block_size
    try:
        return KVCache(tensor, spec.layout, spec.block_size, rows)
    except LayoutError as error:
        raise LayoutError(f"the cache of {spec.key}: {error}") from error


def _check_ranks(plan: Plan, group: Any) -> None:
    if group is not None or plan.parallel.dcp > 1:
        raise NotBuiltError(
            f"running over {plan.parallel.dcp} decode-context ranks is not written yet; the plan can size it, and dcp=1 without "
            "a group can be opened"
        )
