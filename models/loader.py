"""Checkpoint tensors -> a filled module, through transformers' own conversion, refused before anything is made up."""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from transformers import PreTrainedModel
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from .checkpoint_index import CheckpointIndex
from .dequantising import finish_dequantising, quantizer_of
from .dry_run import quiet_transformers
from .errors import CheckpointError
from .keys import KeyResolver, conversions
from .merging import SlicedTensor, source_parts
from .poison import find_poisoned, poisoned_memory
from .ranks import set_data
from .slices import Slices
from .tensor_file import open_tensors
from .verdict import CheckpointPlan

SMALLEST_PORTION = 16 * 2**20
"""Of the rank's own bytes; transformers holds all of a portion where threads read it."""

SMALLEST_PORTION_IN_TURN = 32 * 2**20
"""The same where tensors are read one after the other, so that a portion costs time and no memory."""

NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' switch; it has no argument for it."""


def load_weights(
    module: PreTrainedModel,
    index: CheckpointIndex,
    plan: CheckpointPlan,
    *,
    device: torch.device,
    dtype: torch.dtype,
    slices: Slices | None = None,
    num_ranks: int = 1,
    progress: bool = True,
) -> tuple[str, ...]:
    """Fill a meta module from the files that `plan` accounts for; returns what the user should know about tied weights.

    Tensors are read slice by slice straight to `device` and `dtype`; of parameters that `slices` divides, whose shapes in the
    module are this rank's, no more than its part where they are copied or stacked as they are, and the whole, one at a time,
    where they are converted. Threads read only where each of the `num_ranks` that load at once has two processors: they would
    wait for each other. CheckpointError, with the module left unfinished, if transformers' loader finds anything that the plan
    did not.
    """
    slices = Slices() if slices is None else slices
    config = LoadStateDictConfig(
        pretrained_model_name_or_path=str(index.folder),
        device_map={"": device},
        dtype=dtype,
        dtype_plan=module._get_dtype_plan(dtype),
        weight_mapping=conversions(module),
        hf_quantizer=quantizer_of(module),
    )
    targets: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for target, keys in plan.assigned.items():
        targets[keys].append(target)
    resolver = KeyResolver(module=module)
    source = _Source(
        module=module,
        index=index,
        plan=plan,
        slices=slices,
        resolver=resolver,
        targets=targets,
        in_turn=count_processors() < 2 * num_ranks,
    )
    with quiet_transformers():
        info = _load_in_portions(source, config, progress)
        _check_against_plan(info, plan)
        with poisoned_memory():
            module._finalize_model_loading(module, config, info)
    _check_nothing_left(module, plan)
    finish_dequantising(module)
    for name in slices.zeroed:
        module.get_parameter(name).data.zero_()
    return _note_untied(module, plan)


@contextmanager
def _reading_in_turn() -> Iterator[None]:
    """transformers' reading threads off for the block, then as they were.

    Each thread allocates from an arena of its own, which keeps the room of tensors that were merged and dropped.
    """
    before = os.environ.get(NO_THREADS)
    os.environ[NO_THREADS] = "1"
    try:
        yield
    finally:
        if before is not None:
            os.environ[NO_THREADS] = before
        else:
            del os.environ[NO_THREADS]


def count_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _give_back_freed_memory() -> None:
    """What the portion read, cast and merged, back to the system at once; glibc keeps it between larger blocks in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is filled, from where, and which part of it is this rank's."""

    module: PreTrainedModel
    index: CheckpointIndex
    plan: CheckpointPlan
    slices: Slices
    resolver: KeyResolver
    targets: Mapping[tuple[str, ...], list[str]]
    in_turn: bool


def _load_in_portions(source: _Source, config: LoadStateDictConfig, progress: bool) -> Any:
    merged: Any = None
    with _progress_bar(progress) as bar:
        task = bar.add_task("Loading weights", total=sum(_own_bytes(source, keys) for keys in source.targets))
        _give_back_freed_memory()
        for groups in _split(source):
            info = _load_portion(source, config, groups)
            _give_back_freed_memory()
            merged = info if merged is None else _merge(merged, info)
            bar.advance(task, sum(_own_bytes(source, keys) for keys in groups))
    return merged


def _load_portion(source: _Source, config: LoadStateDictConfig, groups: Sequence[tuple[str, ...]]) -> Any:
    index, plan = source.index, source.plan
    in_turn = source.in_turn or any(len(keys) > 1 for keys in groups)
    with ExitStack() as files, _reading_in_turn() if in_turn else nullcontext():
        paths = dict.fromkeys(index.tensors[key].file for keys in groups for key in keys)
        handles = {path: files.enter_context(open_tensors(path)) for path in paths}
        slices = {
            plan.renamed.get(key, key): handles[index.tensors[key].file].get_slice(index.tensors[key])
            for keys in groups
            for key in keys
        }
        with _whole_where_converted(source, slices, groups):
            return convert_and_load_state_dict_in_model(source.module, slices, config)[0]


@contextmanager
def _whole_where_converted(source: _Source, slices: dict[str, Any], groups: Sequence[tuple[str, ...]]) -> Iterator[None]:
    """Within the block, slices of divided parameters give this rank's part; those that must be converted first give it all,
    and their parameters are whole until the block ends."""
    module, parts = source.module, source.slices.parts
    converted: list[str] = []
    for keys in groups:
        targets = source.targets[keys]
        divided = [target for target in targets if target in parts]
        stored = {source.plan.renamed.get(key, key): source.index.tensors[key].shape for key in keys}
        found = source_parts(source.resolver, stored, parts[divided[0]]) if divided and len(targets) == 1 else None
        if found is None:
            converted += divided
            continue
        for name, part in found.items():
            slices[name] = SlicedTensor(slices[name], part, stored[name])
    for target in converted:
        shape = parts[target].whole_shape(module.get_parameter(target).shape)
        set_data(module, target, torch.empty(shape, device="meta"))
    yield
    for target in converted:
        whole = module.get_parameter(target).data
        set_data(module, target, parts[target].take(whole, whole.shape).clone())


def _split(source: _Source) -> list[list[tuple[str, ...]]]:
    """The keys in portions, those of one parameter together.

    transformers holds all that threads read in one call, and up to twice what it merges into one parameter. Small portions
    bound the first; the largest parameters go first, while little else is loaded.
    """
    own = {keys: _own_bytes(source, keys) for keys in source.targets}
    groups = sorted(own, key=own.__getitem__, reverse=True)
    enough = max(SMALLEST_PORTION_IN_TURN if source.in_turn else SMALLEST_PORTION, sum(own.values()) // 20)
    portions: list[list[tuple[str, ...]]] = [[]]
    held = 0
    for keys in groups:
        if held >= enough:
            portions.append([])
            held = 0
        portions[-1].append(keys)
        held += own[keys]
    return portions


def _own_bytes(source: _Source, keys: tuple[str, ...]) -> int:
    """Bytes of the rank's part of the parameter that these keys make up; all of them where they make up several."""
    targets, whole = source.targets[keys], _bytes(source.index, keys)
    part = source.slices.parts.get(targets[0]) if len(targets) == 1 else None
    return whole if part is None else whole * part.length // part.size


def _bytes(index: CheckpointIndex, keys: Iterable[str]) -> int:
    return sum(index.tensors[key].num_bytes for key in keys)


def _merge(first: Any, second: Any) -> Any:
    first.missing_keys &= second.missing_keys
    first.unexpected_keys |= second.unexpected_keys
    first.mismatched_keys |= second.mismatched_keys
    first.conversion_errors |= second.conversion_errors
    first.error_msgs += second.error_msgs
    return first


def _progress_bar(shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)


def _check_against_plan(info: Any, plan: CheckpointPlan) -> None:
    found: Mapping[str, Any] = {
        "missing": sorted(set(info.missing_keys) - {*plan.missing, *plan.unstored} - _tied_names(plan)),
        "unexpected": sorted(set(info.unexpected_keys) - set(plan.unexpected)),
        "of another shape": sorted(str(key) for key in info.mismatched_keys),
        "not convertible": [f"{name}: {error}" for name, error in info.conversion_errors.items()],
        "failed": list(info.error_msgs),
    }
    problems = [f"{len(names)} {what}: {', '.join(map(str, names[:8]))}" for what, names in found.items() if names]
    if problems:
        raise CheckpointError(f"{plan.folder} loaded otherwise than its headers promised. " + "; ".join(problems))


def _tied_names(plan: CheckpointPlan) -> set[str]:
    return set(plan.tied) | set(plan.tied.values())


def _check_nothing_left(module: PreTrainedModel, plan: CheckpointPlan) -> None:
    left = [name for name, tensor in [*module.named_parameters(), *module.named_buffers()] if tensor.is_meta]
    left += find_poisoned(module, {*plan.missing, *plan.unstored})
    if left:
        raise CheckpointError(f"{len(left)} tensors were neither loaded nor computed: {', '.join(left[:8])}")


def _note_untied(module: PreTrainedModel, plan: CheckpointPlan) -> tuple[str, ...]:
    return tuple(
        f"the config ties {name} to {source}, but the checkpoint holds two different tensors; both are kept"
        for name, source in plan.tied.items()
        if module.get_parameter_or_buffer(name) is not module.get_parameter_or_buffer(source)
    )
