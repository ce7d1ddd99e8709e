"""Opening a plan: caches of hal's own, or the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hal.common.contract.cache import CacheKey
from hal.common.contract.call_values import KVCache
from hal.common.contract.errors import CapacityError, InputError, LayoutError
from hal.common.contract.layouts.scales import describe_wrong
from hal.common.contract.limits import check_positive_int
from hal.common.contract.wording import say_groups
from hal.common.stepping.pages import make_pools

from .attention import Attention, find_torch_device, open_backends
from .ranks import join_ranks

if TYPE_CHECKING:
    from hal.common.contract.cache_groups import CacheSpec
    from hal.common.contract.plan import Plan

__all__ = ["Attention", "bind_attention", "open_attention"]

Given = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


@torch.inference_mode(False)
def open_attention(plan: Plan, num_blocks: int | Sequence[int] | Mapping[int, int] | None, process_group: Any) -> Attention:
    """An Attention on zero-filled caches of its own; CapacityError where they would not fit."""
    ranks = join_ranks(plan, process_group)
    blocks = _blocks_per_group(plan, num_blocks)
    device, where = plan.device, find_torch_device(plan)
    needed = sum(count * group.page_bytes for count, group in zip(blocks, plan.groups, strict=False))
    if device.memory_bytes is not None and needed > device.memory_bytes:
        counts = f"{blocks[0]} pages" if len(set(blocks)) == 1 else f"pools of {', '.join(map(str, blocks))} pages"
        fit = device.memory_bytes // max(1, plan.page_bytes)
        raise CapacityError(
            f"{counts} take {needed} bytes and {device.target} has {device.memory_bytes}; at most {fit} pages of every group fit"
        )
    # A library that does not load is found out before any memory is taken.
    opened = open_backends(plan)
    caches: dict[CacheKey, KVCache] = {}
    for spec in plan.cache_specs():
        storage = spec.allocate(blocks[spec.group], where)
        scale = torch.ones(spec.scale_shapes[0], device=where) if spec.scale_shapes else None
        caches[spec.key] = KVCache(storage, spec.layout, spec.rows_per_page, spec.rows_per_page, scale)
    is_single = num_blocks is None or isinstance(num_blocks, int)
    return Attention(plan, opened, caches, make_pools(blocks, is_single=is_single), ranks)


def _blocks_per_group(plan: Plan, num_blocks: int | Sequence[int] | Mapping[int, int] | None) -> tuple[int, ...]:
    """Pages of each cache group; InputError where the counts are not one, or one for each group."""
    groups = range(max(1, len(plan.groups)))
    if num_blocks is None:
        num_blocks = plan.default_num_blocks()
    if isinstance(num_blocks, Mapping):
        if set(num_blocks) != set(groups):
            raise InputError(f"num_blocks names the groups {sorted(num_blocks)}; the plan has {list(groups)}")
        num_blocks = tuple(num_blocks[group] for group in groups)
    blocks = tuple(num_blocks) if isinstance(num_blocks, Sequence) else (num_blocks,) * len(groups)
    if len(blocks) != len(groups):
        raise InputError(f"num_blocks has {len(blocks)} entries; expected one number, or one for each of {len(groups)} groups")
    for count in blocks:
        check_positive_int("num_blocks", count)
    return blocks


@torch.inference_mode(False)
def bind_attention(plan: Plan, tensors: Mapping[CacheKey, Given], process_group: Any) -> Attention:
    """An Attention on the engine's tensors; LayoutError names the spec and the tensor that do not fit."""
    ranks = join_ranks(plan, process_group)
    specs = {spec.key: spec for spec in plan.cache_specs()}
    if not isinstance(tensors, Mapping):
        raise LayoutError(f"caches is a {type(tensors).__name__}; expected a mapping from plan.cache_specs()' keys to tensors")
    if specs.keys() != tensors.keys():
        raise LayoutError(
            "caches are "
            + say_groups({"missing for": specs.keys() - tensors.keys(), "unknown for": tensors.keys() - specs.keys()})
            + "; plan.cache_specs() has the keys"
        )
    given = {key: _split_scale(key, each) for key, each in tensors.items()}
    blocks = []
    for cache_group in plan.groups:
        counts = {key: storage.shape[0] for key, (storage, _) in given.items() if specs[key].group == cache_group.group_id}
        if len(set(counts.values())) > 1:
            raise LayoutError(f"every cache of group {cache_group.group_id} needs as many pages, got {counts}")
        blocks += list(counts.values())[:1]
    caches = {key: _bind_cache(specs[key], storage, scale, plan) for key, (storage, scale) in given.items()}
    _check_apart({key: (specs[key].group, cache.storage) for key, cache in caches.items()})
    pools = make_pools(blocks or [0], is_single=len(set(blocks)) < 2)
    return Attention(plan, open_backends(plan), caches, pools, ranks)


def _check_apart(storages: Mapping[CacheKey, tuple[int, torch.Tensor]]) -> None:
    """Raise LayoutError where two caches of a group begin in one place: under one table each overwrites the other.

    Caches of different groups may: an engine can give every page to one group at a time.
    """
    begins: dict[tuple[int, int], CacheKey] = {}
    for key, (group, storage) in storages.items():
        first = begins.setdefault((group, storage.data_ptr()), key)
        if first != key and storage.numel():
            raise LayoutError(
                f"the caches of {first} and {key}, both of group {group}, begin in the same memory; give each a tensor of its own"
            )


def _split_scale(key: CacheKey, given: Given) -> tuple[torch.Tensor, torch.Tensor | None]:
    storage, scale = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(storage, torch.Tensor) or not storage.dim():
        raise LayoutError(
            f"the cache of {key} is a {type(given).__name__}; expected a tensor [pages, rows, width], alone or with its scale"
        )
    return storage, scale


def _bind_cache(spec: CacheSpec, tensor: torch.Tensor, scale: torch.Tensor | None, plan: Plan) -> KVCache:
    expected = torch.device(find_torch_device(plan)).type
    if tensor.device.type != expected:
        raise LayoutError(f"the cache of {spec.key} is on {tensor.device}; the plan runs on {expected}")
    rows = tensor.shape[1] if tensor.dim() == 3 else spec.rows_per_page
    try:
        cache = KVCache(tensor, spec.layout, spec.rows_per_page, rows, scale)
    except LayoutError as error:
        raise LayoutError(f"the cache of {spec.key}: {error}") from error
    wrong = None if scale is None else describe_wrong(scale)
    if wrong is not None:
        raise LayoutError(f"the cache of {spec.key}: its scales are {wrong}; expected finite numbers above 0")
    return cache
