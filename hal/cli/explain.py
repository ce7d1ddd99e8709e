"""hal explain: for each device who serves a model's layers, why the others do not, and what it takes."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from hal.common.backends.detection import detect, find_device
from hal.common.backends.registry import backends
from hal.common.backends.select import select
from hal.common.contract.device import Device
from hal.common.contract.errors import NoBackend
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.common.contract.plan import Plan
from hal.common.contract.request import Request
from hal.common.contract.selection import Selection
from hal.common.contract.software import Software
from hal.common.planning.defaults import default_dtype, default_limits
from hal.common.planning.plan import installed, plan
from hal.config import LayerShape, ModelShape, read_shape
from hal.config.dtypes import model_dtype_name
from hal.config.runs import group_layers
from hal.matrix.proof import judge

from .console import InputError, check_backend_name, checked, make_console, print_json
from .declared import read_software
from .explain_answer import Capacity, DeviceAnswer, Explanation, LayerAnswer, Question
from .weights import measure_weights

GB = 10**9
UNSERVED = 3
"""The exit code where a model is served nowhere that was asked for."""

MOST = {
    "memory": 10**6,
    "tp": 4096,
    "dcp": 4096,
    "block_size": 2**16,
    "max_model_len": 2**30,
    "max_num_seqs": 2**20,
    "max_num_batched_tokens": 2**24,
}
"""The most that each number of the command line can be meant to be; memory in GB."""


def run_explain(question: Question, *, as_json: bool, allow_unserved: bool = False) -> int:
    """0 after printing the answer; UNSERVED where no device asked for serves the model, unless that is allowed."""
    answer = explain(question)
    if as_json:
        from .explain_json import to_dict

        print_json(to_dict(answer))
    else:
        from .explain_view import show

        show(answer, make_console())
    return 0 if answer.is_served or allow_unserved else UNSERVED


def explain(question: Question) -> Explanation:
    """The answer for every target, or for this machine's devices where none is named.

    InputError or ConfigError where the question cannot be read. A refusal by every backend is an answer, not an error.
    """
    if not question.config.exists():
        raise InputError(f"{question.config} does not exist; give a config.json or the model folder that holds one")
    _check_numbers(question)
    shape = read_shape(question.config)
    check_backend_name(question.backend)
    dtype = checked(model_dtype_name, default_dtype(shape) if question.dtype == "auto" else question.dtype)
    terms = Explanation(
        shape=shape,
        dtype=dtype,
        kv_layout=question.kv_layout,
        backend=question.backend,
        limits=_limits(question, shape),
        parallel=checked(lambda dcp: Parallel(tp=question.tp, dcp=dcp), question.dcp),
        software=read_software(question.software),
        weights=measure_weights(question.weights, question.config, shape, dtype, question.tp) if question.weights else None,
        devices=(),
    )
    devices = [checked(find_device, target) for target in question.targets] or detect()
    return replace(terms, devices=tuple(_explain_device(terms, device, question.memory_gb) for device in devices))


def _check_numbers(question: Question) -> None:
    """Raise InputError for a number that cannot be meant; what is too small is for Limits and Parallel to say."""
    memory = question.memory_gb
    if memory is not None and not (isfinite(memory) and 0 < memory <= MOST["memory"]):
        raise InputError(f"--memory is {memory:g}; expected a positive number of GB, at most {MOST['memory']:,}")
    for name, most in MOST.items():
        value = getattr(question, name, None)
        if value is not None and value > most:
            raise InputError(f"--{name.replace('_', '-')} is {value:,}; expected at most {most:,}")


def _limits(question: Question, shape: ModelShape) -> Limits:
    try:
        return default_limits(
            shape,
            "fleet",
            max_model_len=question.max_model_len,
            max_num_seqs=question.max_num_seqs,
            max_num_batched_tokens=question.max_num_batched_tokens,
            block_size=question.block_size,
        )
    except ValueError as error:
        raise InputError(str(error)) from error


def _explain_device(terms: Explanation, device: Device, memory_gb: float | None) -> DeviceAnswer:
    software = installed() if device.present else terms.software
    made, refusal = _plan(terms, device, software)
    drafts = len(terms.shape.layers)
    layers = tuple(
        _explain_layer(terms, device, software, made, layer, ids, is_draft=ids[0] >= drafts)
        for listed in (terms.shape.layers, terms.shape.draft_layers)
        for layer, ids in group_layers(listed)
    )
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
    taken = made.workspace_bytes if made is not None else 0
    taken += terms.weights.bytes_on_rank if terms.weights is not None else 0
    left = max(0, memory - taken)
    longest, num_seqs = terms.limits.max_model_len, terms.limits.max_num_seqs

    def fit(count: int) -> int:
        # Ranks that share tokens hold a request together.
        room = left * terms.parallel.dcp
        length = terms.shape.max_tokens(room, terms.kv_layout, terms.dtype, terms.parallel.tp, count)
        return longest if length is None else min(length, longest)

    windowed = made is not None and any(group.window is not None for group in made.groups)
    in_plan = left + made.workspace_bytes if made is not None else 0
    return Capacity(
        memory_bytes=memory,
        taken_bytes=taken,
        num_seqs=num_seqs,
        max_model_len=longest,
        one_request=fit(1),
        each_request=fit(num_seqs),
        pool_tokens=made.max_tokens(in_plan) if made is not None else None,
        group_pool_tokens=made.max_tokens_per_group(in_plan) if made is not None and windowed else None,
    )


def _explain_layer(
    terms: Explanation,
    device: Device,
    software: Software | None,
    made: Plan | None,
    layer: LayerShape,
    ids: tuple[int, ...],
    *,
    is_draft: bool,
) -> LayerAnswer:
    """The plan's own choice, whose page is every layer's; a choice for the layer alone where there is no plan.

    A draft layer is in no plan: its choice is its own, with the plan's page.
    """
    kv_layout = terms.shape.layout_of(layer, terms.kv_layout)
    page = made.block_size if made is not None and is_draft else terms.limits.block_size
    request = Request(layer, device, terms.dtype, kv_layout, page, terms.parallel, software=software)
    if layer.kind in ("none", "cross"):
        return LayerAnswer(layer=layer, layer_ids=ids, family=request.family, selection=None, rejected={}, is_draft=is_draft)
    selection: Selection | None = None
    try:
        selection = made.selections[ids[0]] if made is not None and not is_draft else None
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
        proof=judge(selection, device, terms.dtype) if selection is not None else None,
        is_draft=is_draft,
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
