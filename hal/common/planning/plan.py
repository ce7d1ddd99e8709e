"""plan(): who serves each layer of a model, its caches and its buffers, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from hal.common.backends.detection import find_device
from hal.common.backends.registry import find_backend, known_libraries
from hal.common.backends.select import choose
from hal.common.contract.buffer import Buffer
from hal.common.contract.cache_groups import PARTS, CacheGroup
from hal.common.contract.capabilities import Graphs
from hal.common.contract.device import Device
from hal.common.contract.environment import warn_of_mistakes
from hal.common.contract.errors import BackendError, InputError
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.common.contract.plan import Plan
from hal.common.contract.quiet import describe_error
from hal.common.contract.request import Request
from hal.common.contract.selection import Selection
from hal.common.contract.software import Software
from hal.config import LayerShape, ModelShape
from hal.config.dtypes import model_dtype_name

from .buffers import chosen_rows, plan_buffers
from .cache_parts import CachePart, check_entry_sources, list_parts
from .defaults import default_dtype, default_limits
from .rank_buffers import rank_buffers
from .step_arrays import list_regions, place_regions

if TYPE_CHECKING:
    import torch


def plan(
    shape: ModelShape,
    device: Device | str | torch.device | None = None,
    *,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    dtype: object = None,
    kv_layout: str = "auto",
    backend: str | None = None,
    software: Software | None = None,
    graphs: Graphs = "never",
    num_spec_tokens: int = 0,
    need_lse: bool = False,
) -> Plan:
    """The plan of a model on a device: this machine's best one by default; a target's name means this machine's where it has one.

    limits: as default_limits has them unless given, 8 requests of at most 8,192 tokens. dtype is the model's unless given.
    kv_layout goes to every layer whose kind can have it; the others of a model that has any such layer take "auto"; "fp8" gives
    each layer the fp8 layout of its own family. Quantised index keys go with quantised latents where the backend has them.
    software None takes what is installed for a present device, and every library for
    another. NoBackend where a layer cannot be served; no tensor is made.
    """
    _check_types(shape, limits, parallel, software, kv_layout, backend)
    limits = default_limits(shape) if limits is None else limits
    parallel = Parallel() if parallel is None else parallel
    check_entry_sources(shape)
    warn_of_mistakes()
    device = find_device(device)
    dtype = model_dtype_name(default_dtype(shape) if dtype is None else dtype)
    if software is None and device.present:
        software = installed()

    wishes = (limits.block_size, parallel, software, graphs, num_spec_tokens, need_lse)
    requests = [
        None if layer.kind in ("none", "cross") else Request(layer, device, dtype, shape.layout_of(layer, kv_layout), *wishes)
        for layer in shape.layers
    ]
    selections = _select(requests, backend)
    sizes = {selection.block_size for selection in selections if selection is not None}
    block_size = lcm(*sizes) if sizes else limits.block_size or 16
    requests = [None if request is None else replace(request, block_size=block_size) for request in requests]
    if len(sizes) > 1:
        # One page size for all layers: the least that is a multiple of each backend's own, if every one takes it.
        selections = _select(requests, backend)
    groups = _group_layers(shape.layers, selections, dtype, parallel, block_size, device.fp8, num_spec_tokens)
    gathered = "float32" if any(group.layout.is_quantised for group in groups) else dtype
    return Plan(
        shape=shape,
        device=device,
        limits=limits,
        parallel=parallel,
        dtype=dtype,
        block_size=block_size,
        num_spec_tokens=num_spec_tokens,
        need_lse=need_lse,
        requests=tuple(requests),
        selections=tuple(selections),
        groups=groups,
        buffers=(
            _step_arrays(shape, limits, parallel, block_size, groups),
            *plan_buffers(shape, limits, parallel, dtype, block_size, gathered),
            *chosen_rows(shape, limits, groups),
            *rank_buffers(shape, limits, parallel, dtype),
            *_workspaces(selections, limits),
            *_scratch(requests, selections, limits),
        ),
        backends={name: find_backend(name) for name in _list_providers(selections)},
    )


def _check_types(shape: object, limits: object, parallel: object, software: object, kv_layout: object, backend: object) -> None:
    """Raise InputError for what cannot be meant: above all a config in the place of what is read from it."""
    if not isinstance(shape, ModelShape):
        raise InputError(f"shape is a {type(shape).__name__}; expected the ModelShape that hal.config.read_shape(source) gives")
    for name, value, expected in (
        ("limits", limits, Limits),
        ("parallel", parallel, Parallel),
        ("software", software, Software),
        ("kv_layout", kv_layout, str),
        ("backend", backend, str),
    ):
        if value is not None and not isinstance(value, expected):
            raise InputError(f"{name} is {value!r}; expected a {expected.__name__}")


def _select(requests: list[Request | None], backend: str | None) -> list[Selection | None]:
    return [None if request is None else choose(request, backend) for request in requests]


def _list_providers(selections: Iterable[Selection | None]) -> list[str]:
    """Every backend that serves a call of some layer."""
    return sorted({name for selection in selections if selection for name in selection.providers.values()})


def _step_arrays(
    shape: ModelShape, limits: Limits, parallel: Parallel, block_size: int, groups: tuple[CacheGroup, ...]
) -> Buffer:
    """The one block of a builder's metadata: lengths, positions, slots, and the block tables of every cache group."""
    _, nbytes = place_regions(list_regions(shape, limits, parallel, block_size, groups))
    return Buffer(name="step arrays", shape=(nbytes,), dtype="uint8")


def _workspaces(selections: list[Selection | None], limits: Limits) -> tuple[Buffer, ...]:
    """What the plan's backends fill per step, named after them; BackendError where one cannot say."""
    names = _list_providers(selections)
    return tuple(buffer for name in names for buffer in _ask_buffers(name, find_backend(name).list_workspaces, limits))


def _ask_buffers(name: str, hook: Callable[..., Iterable[Buffer]], *args: object) -> tuple[Buffer, ...]:
    """A backend's own buffers, named after it; BackendError, chained, where it cannot say."""
    try:
        return tuple(replace(buffer, name=f"{name}: {buffer.name}") for buffer in hook(*args))
    except Exception as error:
        raise BackendError(f"{name} does not say which buffers it needs: {describe_error(error)}") from error


def _scratch(requests: list[Request | None], selections: list[Selection | None], limits: Limits) -> tuple[Buffer, ...]:
    """What calls make and give back: the largest of each backend's, since one layer runs at a time."""
    largest: dict[str, Buffer] = {}
    for request, selection in zip(requests, selections, strict=True):
        if request is None or selection is None:
            continue
        served: dict[str, set[str]] = {}
        for call, name in selection.providers.items():
            served.setdefault(name, set()).add(call.partition(".")[0])
        for name, calls in served.items():
            for found in _ask_buffers(name, find_backend(name).list_scratch, request, limits, calls):
                largest[found.name] = max(largest.get(found.name, found), found, key=lambda each: each.nbytes)
    return tuple(largest[name] for name in sorted(largest))


def installed() -> Software:
    """The vendor libraries of this machine that any registered backend can use, from distribution metadata alone."""
    from hal.common.vendor.presence import find_libraries

    return find_libraries(known_libraries().values())


def _group_layers(
    layers: tuple[LayerShape, ...],
    selections: list[Selection | None],
    dtype: str,
    parallel: Parallel,
    block_size: int,
    fp8: str | None,
    num_spec_tokens: int,
) -> tuple[CacheGroup, ...]:
    windows = _read_windows(layers)
    members: dict[CachePart, list[int]] = {}
    for layer, selection in zip(layers, selections, strict=True):
        if selection is not None:
            for part in list_parts(layer, selection, dtype, parallel, windows.get(layer.layer_id), fp8, num_spec_tokens):
                members.setdefault(part, []).append(layer.layer_id)
    ordered = sorted(members.items(), key=lambda item: (PARTS.index(item[0].part), item[1][0]))
    return tuple(
        CacheGroup(
            group_id=i,
            part=part.part,
            layer_ids=tuple(ids),
            layout=part.layout,
            block_size=block_size,
            window=part.window,
            tokens_per_row=part.tokens_per_row,
            last_rows=part.last_rows,
        )
        for i, (part, ids) in enumerate(ordered)
    )


def _read_windows(layers: tuple[LayerShape, ...]) -> dict[int, int | None]:
    """By layer that owns KV: the widest window of those that read it; None where one of them may read any key."""
    windows: dict[int, int | None] = {}
    for layer in layers:
        known = windows.get(layer.kv_source, 0)
        windows[layer.kv_source] = None if layer.window is None or known is None else max(layer.window, known)
    return windows
