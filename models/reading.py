"""How many bytes of a checkpoint each rank reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from hal.common.contract.parallel import Parallel
from hal.config import ModelShape

from .checkpoint_header import StoredTensor
from .keys import NUMBER, KeyResolver
from .merging import source_parts
from .sharding import plan_sharding
from .slices import Slices, block


def shares_per_rank(module: PreTrainedModel, shape: ModelShape, parallel: Parallel) -> tuple[Slices, ...]:
    """What each tensor-parallel rank keeps of the module, in size. InputError where the ranks do not divide it.

    Heads and widths divide evenly or not at all, so that ranks differ in their share of the vocabulary alone: one of those
    with the same share stands for all, and the model is looked at once or twice instead of once a rank.
    """
    weights = [getattr(end, "weight", None) for end in (module.get_input_embeddings(), module.get_output_embeddings())]
    sizes = [weight.shape[0] for weight in weights if isinstance(weight, torch.Tensor)]
    known: dict[tuple[int, ...], Slices] = {}
    shares = []
    for rank in range(parallel.tp):
        kind = tuple(len(block(size, rank, parallel.tp)) for size in sizes)
        if kind not in known:
            known[kind] = plan_sharding(module, shape, replace(parallel, tp_rank=rank)).slices
        shares.append(known[kind])
    return tuple(shares)


def count_bytes(
    resolver: KeyResolver,
    assigned: Mapping[str, tuple[str, ...]],
    renamed: Mapping[str, str],
    stored: Mapping[str, StoredTensor],
    shares: Sequence[Slices],
) -> tuple[int, ...]:
    """Bytes read by every rank: of a divided parameter its part, and all of it where it has to be converted first."""
    targets: dict[tuple[str, ...], list[str]] = {}
    for target, keys in assigned.items():
        targets.setdefault(keys, []).append(target)
    return tuple(_count_rank(resolver, targets, renamed, stored, slices) for slices in shares)


def _count_rank(
    resolver: KeyResolver,
    targets: Mapping[tuple[str, ...], list[str]],
    renamed: Mapping[str, str],
    stored: Mapping[str, StoredTensor],
    slices: Slices,
) -> int:
    total = 0
    known: dict[object, int] = {}
    for keys, filled in targets.items():
        divided = [target for target in filled if target in slices.parts]
        num_bytes = sum(stored[key].num_bytes for key in keys)
        if len(divided) != 1 or len(filled) != 1:
            total += num_bytes
            continue
        part = slices.parts[divided[0]]
        likeness = (NUMBER.sub("*", divided[0]), part, tuple((NUMBER.sub("*", key), stored[key].shape) for key in keys))
        if likeness not in known:
            shapes = {renamed.get(key, key): stored[key].shape for key in keys}
            found = source_parts(resolver, shapes, part)
            sizes = {renamed.get(key, key): stored[key] for key in keys}
            known[likeness] = (
                num_bytes
                if found is None
                else sum(sizes[name].num_bytes * each.length // each.size for name, each in found.items())
            )
        total += known[likeness]
    return total
