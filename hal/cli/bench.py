"""hal bench: how long a model's attention takes on this machine, one layer of each kind measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hal.common.backends.detection import find_device
from hal.common.contract.backend import PHASES
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.common.contract.plan import Plan
from hal.common.planning.plan import plan
from hal.config import LayerShape, ModelShape, read_shape
from hal.config.dtypes import model_dtype_name
from hal.config.runs import group_layers

from .bench_timing import KindTimes, Timing, Trial
from .console import InputError, check_backend_name, checked, make_console, print_json

if TYPE_CHECKING:
    from hal.common.contract.step import StepMetadata
    from hal.common.running.attention import Attention

    from .bench_calls import LayerCalls

LEAST_SECONDS = 0.2
"""How long each call is repeated; what is told is the median."""


def run_bench(trial: Trial, *, as_json: bool) -> int:
    """0, after printing the times."""
    from .bench_view import show, to_dict

    timing = measure(trial)
    if as_json:
        print_json(to_dict(timing))
    else:
        show(timing, make_console())
    return 0


def measure(trial: Trial) -> Timing:
    """The times; InputError or another error of hal's for what cannot be measured here, before anything is allocated."""
    for name, value in (("--context", trial.context), ("--requests", trial.requests), ("--prefill", trial.prefill)):
        if value < 1:
            raise InputError(f"{name} is {value}; expected at least 1")
    if trial.device:
        checked(find_device, trial.device)
    dtype = None if trial.dtype == "auto" else checked(model_dtype_name, trial.dtype)
    check_backend_name(trial.backend)
    shape = read_shape(trial.config)
    picked, stands_for = pick_layers(shape)
    if find_spec("torch") is None:
        raise InputError("torch is not installed; pip install 'hal-attention[torch]'")
    made = plan(
        picked,
        trial.device or None,
        limits=Limits(max(trial.context, trial.prefill), trial.requests, max(trial.requests, trial.prefill)),
        parallel=Parallel(tp=trial.tp),
        dtype=dtype,
        kv_layout=trial.kv_layout,
        backend=trial.backend,
    )
    attention = made.open()
    kinds, build_seconds = _time_layers(attention, trial, stands_for)
    return Timing(trial=trial, shape=shape, target=made.device.target, dtype=made.dtype, kinds=kinds, build_seconds=build_seconds)


def pick_layers(shape: ModelShape) -> tuple[ModelShape, tuple[tuple[int, ...], ...]]:
    """A small model of the first layer of each kind and of those it reads, and the ids that each of its layers stands for.

    InputError where no layer attends.
    """
    groups = {layer.layer_id: ids for layer, ids in group_layers(shape.layers) if layer.kind not in ("none", "cross")}
    if not groups:
        raise InputError(f"no layer of this {shape.model_type} attends to a cache of hal's; nothing to measure")
    kept: dict[int, None] = {}
    for layer_id in groups:
        _keep(shape, layer_id, kept)
    renamed = {old: new for new, old in enumerate(sorted(kept))}
    layers = tuple(_rename(shape.layers[old], renamed) for old in renamed)
    return replace(shape, layers=layers, num_layers=len(layers), draft_layers=()), tuple(groups.get(old, ()) for old in renamed)


def _keep(shape: ModelShape, layer_id: int, kept: dict[int, None]) -> None:
    """Keep a layer and what it takes from others: their KV, their entries, the choice of the last indexer before it."""
    if layer_id in kept:
        return
    kept[layer_id] = None
    layer = shape.layers[layer_id]
    for source in (layer.kv_source, layer.entry_source):
        if source is not None:
            _keep(shape, source, kept)
    if layer.indexer is not None and not layer.indexer.owns:
        owners = [each.layer_id for each in shape.layers[:layer_id] if each.indexer is not None and each.indexer.owns]
        _keep(shape, owners[-1], kept)


def _rename(layer: LayerShape, renamed: Mapping[int, int]) -> LayerShape:
    entries = None if layer.entry_source is None else renamed[layer.entry_source]
    return replace(layer, layer_id=renamed[layer.layer_id], kv_source=renamed[layer.kv_source], entry_source=entries)


def _time_layers(
    attention: Attention, trial: Trial, stands_for: tuple[tuple[int, ...], ...]
) -> tuple[tuple[KindTimes, ...], Mapping[str, float]]:
    import numpy as np

    from hal.common.contract.batch import Batch

    from .bench_calls import LayerCalls

    made = attention.plan
    calls = LayerCalls(attention)
    tables = np.arange(made.default_num_blocks(), dtype=np.int32).reshape(trial.requests, -1)
    batches = {
        "decode": Batch([1] * trial.requests, [trial.context] * trial.requests, tables),
        "prefill": Batch([trial.prefill], [trial.prefill], tables[:1]),
    }
    seconds: dict[str, tuple[float, ...]] = {}
    build_seconds = {}
    for phase, batch in batches.items():
        build_seconds[phase] = _time(partial(attention.build, batch))
        seconds[phase] = _time_step(calls, made, attention.build(batch))
    kinds = tuple(
        KindTimes(
            layer=layer,
            layer_ids=ids,
            backend=selection.backend,
            seconds={phase: seconds[phase][layer.layer_id] for phase in PHASES},
        )
        for layer, ids, selection in zip(made.shape.layers, stands_for, made.selections, strict=True)
        if ids and selection is not None
    )
    return kinds, build_seconds


def _time_step(calls: LayerCalls, made: Plan, metadata: StepMetadata) -> tuple[float, ...]:
    """Seconds of each layer's call, in order: a layer may read what one before it chose in this step."""
    return tuple(_time(calls.prepare(layer, metadata)) for layer in made.shape.layers)


def _time(call: Callable[[], object]) -> float:
    """Median seconds of a call that has run before, the device waited for."""
    import torch
    from torch.utils.benchmark import Timer

    call()
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=LEAST_SECONDS).median)
