"""hal explain: for each device who serves a model's layers, why the others do not, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from hal.common.detection import detect
from hal.common.device import Device
from hal.common.errors import NoBackend
from hal.common.limits import Limits
from hal.common.parallel import Parallel
from hal.common.plan import Plan
from hal.common.planning import installed, plan
from hal.common.reason import Reason
from hal.common.registry import backends
from hal.common.request import Request
from hal.common.select import select
from hal.common.selection import Selection
from hal.common.software import Software
from hal.config import LayerShape, ModelShape, read_shape
from hal.config.dtypes import model_dtype_name
from hal.config.runs import group_layers

from .console import InputError, check_backend_name, checked, make_console, print_json
from .declared import read_software

DEFAULT_DTYPE = "bfloat16"
DEFAULT_LENGTH = 8192
GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the command line asks; memory_gb is one rank's, in units of 10^9 bytes."""

    config: Path
    targets: tuple[str, ...] = ()
    tp: int = 1
    dcp: int = 1
    dtype: str = "auto"
    kv_layout: str = "auto"
    block_size: int | None = None
    backend: str | None = None
    memory_gb: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    software: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswer:
    """Layers alike on one device. selection is None where nobody serves them; rejected has every refusal either way.

    also_able: backends that would serve them and were not chosen.
    """

    layer: LayerShape
    layer_ids: tuple[int, ...]
    family: str
    selection: Selection | None
    rejected: Mapping[str, tuple[Reason, ...]]
    also_able: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Tokens that fit in a memory beside the plan's workspace, or in all of it where there is no plan.

    one_request: the longest that one request could be; each_request: that num_seqs could all be; None where no length is too
    long. pool_tokens: what the plan's pools hold over all requests, None without a plan; group_pool_tokens: the same with a pool
    for each cache group, whose pages windows give back; None where no layer has a window.
    """

    memory_bytes: int
    num_seqs: int
    one_request: int | None
    each_request: int | None
    pool_tokens: int | None
    group_pool_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswer:
    """One device; sizes are one rank's. plan is None, with `refusal` saying why, where some layer has no backend.

    software: what the answer takes to be installed, None for every library. capacity is None without a memory size.
    """

    device: Device
    software: Software | None
    layers: tuple[LayerAnswer, ...]
    plan: Plan | None
    refusal: str
    kv_bytes_per_token: int
    index_bytes_per_token: int
    capacity: Capacity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole answer and the terms it holds under."""

    shape: ModelShape
    dtype: str
    kv_layout: str
    backend: str | None
    limits: Limits
    parallel: Parallel
    software: Software | None
    devices: tuple[DeviceAnswer, ...]


def run_explain(question: Question, *, as_json: bool) -> int:
    """0, after printing the answer; that no backend serves the model is an answer too."""
    from .explain_view import show, to_dict

    answer = explain(question)
    if as_json:
        print_json(to_dict(answer))
    else:
        show(answer, make_console())
    return 0


def explain(question: Question) -> Explanation:
    """The answer for every target, or for this machine's devices where none is named.

    InputError or ConfigError where the question cannot be read. A refusal by every backend is an answer, not an error.
    """
    if not question.config.exists():
        raise InputError(f"{question.config} does not exist; give a config.json or the model folder that holds one")
    if question.memory_gb is not None and not (question.memory_gb > 0 and isfinite(question.memory_gb * GB)):
        raise InputError(f"--memory is {question.memory_gb:g}; expected a positive number of GB")
    shape = read_shape(question.config)
    check_backend_name(question.backend)
    terms = Explanation(
        shape=shape,
        dtype=checked(model_dtype_name, question.dtype if question.dtype != "auto" else shape.dtype or DEFAULT_DTYPE),
        kv_layout=question.kv_layout,
        backend=question.backend,
        limits=_limits(question, shape),
        parallel=checked(lambda dcp: Parallel(tp=question.tp, dcp=dcp), question.dcp),
        software=read_software(question.software),
        devices=(),
    )
    devices = [_find_device(target) for target in question.targets] or detect()
    return replace(terms, devices=tuple(_explain_device(terms, device, question.memory_gb) for device in devices))


def _find_device(target: str) -> Device:
    """This machine's own device where it has one of that arch, else the table's."""
    wanted = checked(Device.from_arch, target)
    return next((device for device in detect() if device.target == wanted.target), wanted)


def _limits(question: Question, shape: ModelShape) -> Limits:
    longest = question.max_model_len
    if longest is None:
        longest = shape.max_position_embeddings or DEFAULT_LENGTH
    try:
        return Limits(longest, question.max_num_seqs, question.max_num_batched_tokens, question.block_size)
    except ValueError as error:
        raise InputError(str(error)) from error


def _explain_device(terms: Explanation, device: Device, memory_gb: float | None) -> DeviceAnswer:
    software = installed() if device.present else terms.software
    made, refusal = _plan(terms, device, software)
    layers = tuple(_explain_layer(terms, device, software, made, layer, ids) for layer, ids in group_layers(terms.shape.layers))
    tp = terms.parallel.tp
    kv_bytes = checked(lambda layout: terms.shape.kv_bytes_per_token(layout, terms.dtype, tp), terms.kv_layout)
    index_bytes = terms.shape.index_bytes_per_token(terms.kv_layout, terms.dtype)
    memory = int(memory_gb * GB) if memory_gb is not None else device.memory_bytes
    return DeviceAnswer(
        device=device,
        software=software,
        layers=layers,
        plan=made,
        refusal=refusal,
        kv_bytes_per_token=kv_bytes,
        index_bytes_per_token=index_bytes,
        capacity=None if memory is None else _measure_capacity(terms, memory, made),
    )


def _measure_capacity(terms: Explanation, memory: int, made: Plan | None) -> Capacity:
    # Ranks that share tokens hold a request together.
    room = max(0, memory - (made.workspace_bytes if made is not None else 0)) * terms.parallel.dcp
    one, each = (
        terms.shape.max_tokens(room, terms.kv_layout, terms.dtype, terms.parallel.tp, num_seqs)
        for num_seqs in (1, terms.limits.max_num_seqs)
    )
    windowed = made is not None and any(group.window is not None for group in made.groups)
    return Capacity(
        memory_bytes=memory,
        num_seqs=terms.limits.max_num_seqs,
        one_request=one,
        each_request=each,
        pool_tokens=made.max_tokens(memory) if made is not None else None,
        group_pool_tokens=made.max_tokens_per_group(memory) if made is not None and windowed else None,
    )


def _explain_layer(
    terms: Explanation, device: Device, software: Software | None, made: Plan | None, layer: LayerShape, ids: tuple[int, ...]
) -> LayerAnswer:
    """The plan's own choice, whose page is every layer's; a choice for the layer alone where there is no plan."""
    kv_layout = terms.shape.layout_of(layer, terms.kv_layout)
    request = Request(layer, device, terms.dtype, kv_layout, terms.limits.block_size, terms.parallel, software=software)
    if layer.kind in ("none", "cross"):
        return LayerAnswer(layer=layer, layer_ids=ids, family=request.family, selection=None, rejected={})
    selection: Selection | None = None
    try:
        selection = made.selections[ids[0]] if made is not None else None
        selection = selection or select(request, terms.backend)
        rejected = selection.rejected
    except NoBackend as refusal:
        rejected = {name: reasons for name, reasons in refusal.rejected.items() if reasons}
    chosen = selection.backend if selection is not None else None
    return LayerAnswer(
        layer=layer,
        layer_ids=ids,
        family=request.family,
        selection=selection,
        rejected=rejected,
        also_able=tuple(sorted(name for name in backends() if name not in rejected and name != chosen)),
    )


def _plan(terms: Explanation, device: Device, software: Software | None) -> tuple[Plan | None, str]:
    try:
        made = plan(
            terms.shape,
            device,
            limits=terms.limits,
            parallel=terms.parallel,
            dtype=terms.dtype,
            kv_layout=terms.kv_layout,
            backend=terms.backend,
            software=software,
        )
    except NoBackend as refusal:
        return None, str(refusal)
    return made, ""
