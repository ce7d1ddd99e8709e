"""The plan of a checkpoint: every tensor of its files and every parameter of its model, from headers alone."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hal.common.contract.parallel import Parallel
from hal.config import ModelShape

from .build import TIED, build_module, flag_ties, read_model
from .checkpoint_header import DTYPES, PACKED_BITS, StoredTensor
from .checkpoint_index import CheckpointIndex, read_index
from .dequantising import has_scales, quantizer_of
from .dry_run import run_dry
from .keys import KeyResolver, ResolvedKey, find_collisions, natural_order
from .prefixes import extend, find_copies, infer_prefixes
from .quantisation import FLOAT8, WHOLE, find_quantisation
from .ranks import join_ranks
from .reading import count_bytes, shares_per_rank
from .skipping import BufferRules
from .slices import Slices
from .tying import explain_ties
from .unbuilt import UnbuiltParts, find_nests, find_towers
from .unstored import find_unstored
from .verdict import CheckpointPlan, find_nearest


def plan_checkpoint(path: str | Path, *, parallel: Parallel | None = None, group: Any = None) -> CheckpointPlan:
    """What loading this folder would do, from its config and its files' headers; no tensor data is read.

    parallel, group: as load takes them; the plan then counts what each tensor-parallel rank reads.
    CheckpointError where the folder itself is broken (no config, unknown model, absent or foreign shards); everything
    about single tensors is in the plan, see `raise_if_bad`. InputError where the ranks do not divide the model.
    """
    folder = Path(path)
    ranks = join_ranks(parallel, group).parallel if group is not None else parallel or Parallel()
    config, shape = read_tied_model(folder)
    index, module = read_index(folder), build_module(config)
    return plan_tensors(index, module, shape, shares_per_rank(module, shape, ranks))


def read_tied_model(folder: Path) -> tuple[PreTrainedConfig, ModelShape]:
    """A folder's config and shape, with embedding and head tied as its config and its files say together.

    The text part's flag decides. Where it unties what the whole model ties, both as their classes do by themselves, and the
    files hold only one of the two, the whole model's is right: transformers follows that flag alone, writes such files by the
    defaults of several classes, and without the tie one of the two would be missing. CheckpointError as read_model and, in
    that case alone, read_index.
    """
    config, shape, is_disputed = read_model(folder)
    if not is_disputed:
        return config, shape
    tied_config, tied_shape = flag_ties(copy.deepcopy(config), shape, True)
    plan = plan_tensors(read_index(folder), build_module(tied_config), tied_shape)
    if all((name in plan.assigned) == (source in plan.assigned) for name, source in plan.tied.items()):
        return config, shape
    others = tuple(words for words in shape.warnings if TIED not in words)
    note = f"{type(config).__name__}.{TIED} is True and the text part's is False; the first is used, since one matrix is stored"
    return tied_config, replace(tied_shape, warnings=(*others, note))


def plan_tensors(
    index: CheckpointIndex, module: PreTrainedModel, shape: ModelShape, shares: Sequence[Slices] = (Slices(),)
) -> CheckpointPlan:
    """The plan for tensors already indexed; `module` is on the meta device and is used up by the dry run.

    shares: what each rank that is asked about keeps of the module, the whole by default.
    """
    resolver = KeyResolver(module=module)
    stored = index.tensors
    keys = _sort_keys(stored, resolver, shape)
    collisions = find_collisions(keys.resolved)
    doubled = {key for sources in collisions.values() for key in sources}
    # Two tensors for one place, or a type that torch lacks, end transformers' loader instead of telling it something.
    clear = {key: place for key, place in keys.resolved.items() if key not in doubled and stored[key].dtype in DTYPES}
    outcome = run_dry(resolver, clear, stored)
    tied = {name: source for name, source in module.all_tied_weights_keys.items() if name != source}
    assigned: dict[str, list[str]] = defaultdict(list)
    for key, place in keys.resolved.items():
        for target in place.targets:
            assigned[target].append(key)
    unclear = {target for key in keys.resolved.keys() - clear.keys() for target in keys.resolved[key].targets}
    lost = set(resolver.state) - outcome.filled - outcome.mismatched.keys() - unclear
    missing, unexpected = _missing_after_tying(lost, tied, resolver.state), tuple(sorted(keys.unexpected))
    unstored = find_unstored(module, missing, shares)
    missing = tuple(name for name in missing if name not in unstored)
    is_expanded = quantizer_of(module) is not None
    plain = {key: place for key, place in keys.resolved.items() if not (is_expanded and has_scales(key, stored))}
    sources = {target: tuple(found) for target, found in sorted(assigned.items())}
    renamed = {key: place.source for key, place in keys.resolved.items() if place.source != key}
    return CheckpointPlan(
        folder=index.folder,
        assigned=sources,
        conversions=_describe_conversions(keys.resolved, resolver),
        dtypes={key: tensor.dtype for key, tensor in stored.items()},
        skipped=keys.skipped,
        unused=keys.unused,
        missing=missing,
        unstored=unstored,
        unexpected=unexpected,
        nearest=find_nearest(missing, unexpected, sources),
        mismatched=dict(outcome.mismatched)
        | _other_elements(plain, stored, resolver.state)
        | _packed_weights(keys.unexpected, stored),
        collisions=collisions,
        tied=tied,
        tied_because=explain_ties(module, tied),
        bytes_per_rank=count_bytes(resolver, sources, renamed, stored, shares),
        index_only=index.index_only,
        elsewhere=index.elsewhere,
        header_only=index.header_only,
        extra_files=index.extra_files,
        stored_format=None if is_expanded else find_quantisation(module.config, index.folder, stored),
        renamed=renamed,
        warnings=(*shape.warnings, *_warn(index, tied, assigned)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SortedKeys:
    resolved: dict[str, ResolvedKey]
    skipped: dict[str, str]
    unused: dict[str, str]
    unexpected: set[str]


def _sort_keys(tensors: Mapping[str, StoredTensor], resolver: KeyResolver, shape: ModelShape) -> _SortedKeys:
    resolved: dict[str, ResolvedKey] = {}
    skipped: dict[str, str] = {}
    unused: dict[str, str] = {}
    rest: dict[str, StoredTensor] = {}
    buffers, parts = BufferRules(module=resolver.module), UnbuiltParts(module=resolver.module, shape=shape)
    for key in sorted(tensors, key=natural_order):
        place = resolver.resolve(key)
        if place is not None:
            resolved[key] = place
        elif reason := buffers.explain(tensors[key]):
            skipped[key] = reason
        elif reason := parts.explain(key, resolver.rename(key)):
            unused[key] = reason
        else:
            rest[key] = tensors[key]
    taken = {target for place in resolved.values() for target in place.targets}
    readings = infer_prefixes(rest, resolver, taken) if rest else []
    for reading in readings:
        resolved |= reading.placed
    if readings:
        spare = {key: tensors[key] for key in (*skipped, *unused, *rest) if key not in resolved}
        resolved |= (found := extend(readings, spare, resolver, taken))
        skipped, unused = ({key: why for key, why in each.items() if key not in found} for each in (skipped, unused))
        resolved = dict(sorted(resolved.items(), key=lambda pair: natural_order(pair[1].source)))
    unexpected = set(rest) - resolved.keys()
    nests = [reading.rule.strip for reading in readings if reading.rule.strip] or find_nests(resolved)
    copies = find_copies({key: rest[key] for key in unexpected}, resolver) if nests else frozenset()
    towers = find_towers(unexpected - copies, nests)
    return _SortedKeys(resolved=resolved, skipped=skipped, unused=unused | towers, unexpected=unexpected - towers.keys())


def _describe_conversions(resolved: Mapping[str, ResolvedKey], resolver: KeyResolver) -> dict[str, str]:
    return {
        target: resolver.describe_converter(place.converter)
        for place in resolved.values()
        if place.converter is not None
        for target in place.targets
    }


def _missing_after_tying(missing: set[str], tied: Mapping[str, str], state: Mapping[str, object]) -> tuple[str, ...]:
    groups: dict[str, set[str]] = defaultdict(set)
    for name, source in tied.items():
        groups[source] |= {name, source}
    filled = {name for group in groups.values() if group & state.keys() - missing for name in group}
    return tuple(sorted(missing - filled))


def _other_elements(
    resolved: Mapping[str, ResolvedKey], tensors: Mapping[str, StoredTensor], state: Mapping[str, torch.Tensor]
) -> dict[str, str]:
    # An 8-bit float or a whole number is only half a weight: cast without its scale it loads cleanly and computes nonsense.
    found = {}
    for key, place in resolved.items():
        stored, wanted = tensors[key], state[place.target].dtype
        if stored.dtype not in DTYPES:
            found[place.target] = f"stored as {stored.dtype}, several to a byte; only unquantised checkpoints can be loaded"
        elif stored.dtype in FLOAT8 and wanted.itemsize > 1:
            found[place.target] = f"stored as {stored.dtype}, which needs a scale; only unquantised checkpoints can be loaded"
        elif _kind(stored.torch_dtype) != _kind(wanted):
            found[place.target] = (
                f"stored as {stored.dtype}, and the model has {wanted}; only unquantised checkpoints can be loaded"
            )
    return found


def _kind(dtype: torch.dtype) -> str:
    return "complex" if dtype.is_complex else "fraction" if dtype.is_floating_point else "whole"


def _packed_weights(unexpected: Collection[str], tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    # A matrix of whole numbers that no parameter takes holds several weights to a word; without them the model is made up.
    return {
        key: f"stored packed as {tensors[key].dtype}; only unquantised checkpoints can be loaded"
        for key in sorted(unexpected)
        if tensors[key].dtype in WHOLE | PACKED_BITS.keys() and len(tensors[key].shape) >= 2
    }


def _warn(index: CheckpointIndex, tied: Mapping[str, str], assigned: Mapping[str, list[str]]) -> tuple[str, ...]:
    warnings = [*index.warnings]
    if index.header_only:
        warnings.append(f"{len(index.header_only)} tensors lie in the files but not in the index and are not read")
    warnings += [
        f"{name} is tied to {source} by the config, and the checkpoint holds both; they stay apart if they differ"
        for name, source in tied.items()
        if name in assigned and source in assigned
    ]
    return tuple(warnings)
