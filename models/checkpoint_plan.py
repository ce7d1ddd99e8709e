"""The dry run: transformers' own loader on tensors without data, so that the verdict covers conversions too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from hal.config import ModelShape

from .build import build_module, read_model
from .checkpoint_header import DTYPES, PACKED_BITS, StoredTensor
from .checkpoint_index import CheckpointIndex, read_index
from .errors import CheckpointError, describe
from .keys import KeyResolver, ResolvedKey, conversions, find_collisions
from .prefixes import infer_prefixes
from .quantisation import FLOAT8, WHOLE, find_quantisation
from .skipping import BufferRules
from .unbuilt import UnbuiltParts
from .verdict import CheckpointPlan


def plan_checkpoint(path: str | Path) -> CheckpointPlan:
    """What loading this folder would do, from its config and its files' headers; no tensor data is read.

    CheckpointError where the folder itself is broken (no config, unknown model, absent or foreign shards); everything
    about single tensors is in the plan, see `raise_if_bad`.
    """
    folder = Path(path)
    config, shape = read_model(folder)
    return plan_tensors(read_index(folder), build_module(config), shape)


def plan_tensors(index: CheckpointIndex, module: PreTrainedModel, shape: ModelShape) -> CheckpointPlan:
    """The plan for tensors already indexed; `module` is on the meta device and is used up by the dry run."""
    resolver = KeyResolver(module=module)
    keys = _sort_keys(index.tensors, resolver, shape)
    collisions = find_collisions(keys.resolved)
    doubled = {key for sources in collisions.values() for key in sources}
    # Two tensors for one place, or a type that torch lacks, end transformers' loader instead of telling it something.
    clear = {key: place for key, place in keys.resolved.items() if key not in doubled and index.tensors[key].dtype in DTYPES}
    report = _dry_run(module, {place.source: index.tensors[key] for key, place in clear.items()})
    tied = {name: source for name, source in module.all_tied_weights_keys.items() if name != source}
    assigned: dict[str, list[str]] = defaultdict(list)
    for key, place in keys.resolved.items():
        for target in place.targets:
            assigned[target].append(key)
    missing = report.missing_keys - {target for key in keys.resolved.keys() - clear for target in keys.resolved[key].targets}
    return CheckpointPlan(
        folder=index.folder,
        assigned={target: tuple(sources) for target, sources in sorted(assigned.items())},
        skipped=keys.skipped,
        unused=keys.unused,
        missing=_missing_after_tying(missing, tied, resolver.state),
        unexpected=tuple(sorted(keys.unexpected | report.unexpected_keys)),
        mismatched=_describe_mismatches(report)
        | _other_elements(keys.resolved, index.tensors, resolver.state)
        | _packed_weights(keys.unexpected, index.tensors),
        collisions=collisions,
        tied=tied,
        index_only=index.index_only,
        elsewhere=index.elsewhere,
        header_only=index.header_only,
        extra_files=index.extra_files,
        stored_format=find_quantisation(module.config, index.folder, index.tensors),
        renamed={key: place.source for key, place in keys.resolved.items() if place.source != key},
        warnings=_warn(index, tied, assigned),
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
    for key, tensor in tensors.items():
        place = resolver.resolve(key)
        if place is not None:
            resolved[key] = place
        elif reason := buffers.explain(tensor):
            skipped[key] = reason
        elif reason := parts.explain(key, resolver.rename(key)):
            unused[key] = reason
        else:
            rest[key] = tensor
    inferred = infer_prefixes(rest, resolver, {place.target for place in resolved.values()}) if rest else {}
    return _SortedKeys(resolved=resolved | inferred, skipped=skipped, unused=unused, unexpected=set(rest) - set(inferred))


def _dry_run(module: PreTrainedModel, tensors: Mapping[str, StoredTensor]) -> Any:
    empty = {name: torch.empty(tensor.shape, dtype=tensor.torch_dtype, device="meta") for name, tensor in tensors.items()}
    config = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=conversions(module))
    with quiet_transformers():
        try:
            return convert_and_load_state_dict_in_model(module, empty, config)[0]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"transformers' loader cannot put these tensors together: {describe(error)}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers' loading bar and report off for the block, then as they were: the plan says it all."""
    shown, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shown:
            transformers_logging.enable_progress_bar()


def _missing_after_tying(missing: set[str], tied: Mapping[str, str], state: Mapping[str, object]) -> tuple[str, ...]:
    groups: dict[str, set[str]] = defaultdict(set)
    for name, source in tied.items():
        groups[source] |= {name, source}
    filled = {name for group in groups.values() if group & state.keys() - missing for name in group}
    return tuple(sorted(missing - filled))


def _describe_mismatches(report: Any) -> dict[str, str]:
    found = {
        name: f"the checkpoint has {list(have)}, the model wants {list(want)}"
        for name, have, want in sorted(report.mismatched_keys)
    }
    for name, error in report.conversion_errors.items():
        found[name] = "its parts cannot be put together: " + re.sub(r"\s+", " ", str(error)).strip()
    return found


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
