"""The compile proof: every portable kernel of some models, compiled for archs that are not here, with its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product

from hal.common.contract.device import Device
from hal.common.contract.errors import NoBackend
from hal.common.contract.parallel import Parallel
from hal.common.contract.request import Request
from hal.common.triton import specialisations
from hal.common.triton.launch import LaunchKey
from hal.common.triton.specialisation import Specialisation
from hal.config import LayerShape, ModelShape, read_shape

from .build import Built, Job, build_all
from .figures import Figures, find_faults
from .fleet import PlatformProof, read_fleet
from .targets import Toolchain, find_arch, find_toolchain

_PREFIX, _SUFFIX = "model-", ".json"
DEFAULT_DTYPE = "bfloat16"
LAYOUTS = ("auto", "fp8")
"""The caches that binaries are compiled for: those that backends prefer, and fp8 ones where a backend has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One binary, or why there is none. models: whose layers launch it. faults: empty where the arch can live with it."""

    target: str
    kernel: str
    models: tuple[str, ...]
    specialisation: Specialisation | None
    figures: Figures | None
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """Every row of every target that could be tried, and for each of the others why nothing was compiled."""

    toolchain: Toolchain
    rows: tuple[KernelRow, ...]
    absent: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A binary to make, before it is made."""

    device: Device
    proof: PlatformProof
    models: tuple[str, ...]
    specialisation: Specialisation


def sample_models() -> dict[str, ModelShape]:
    """The models that stand for the others, by the names of this package's config files."""
    found = sorted(item.name for item in files(__package__).iterdir() if item.name.startswith(_PREFIX))
    texts = {name: files(__package__).joinpath(name).read_text(encoding="utf-8") for name in found}
    return {name[len(_PREFIX) : -len(_SUFFIX)]: read_shape(json.loads(text)) for name, text in texts.items()}


def fleet_devices() -> tuple[Device, ...]:
    """Every arch of the fleet that is proved by compiling."""
    proofs = (proof for proof in read_fleet() if proof.compiler is not None)
    return tuple(Device.from_arch(f"{proof.platform}:{arch}") for proof in proofs for arch in proof.archs)


def compile_models(
    models: Mapping[str, ModelShape],
    devices: Sequence[Device],
    *,
    tp: int = 1,
    workers: int = 2,
    on_start: Callable[[int], object] = lambda _count: None,
    on_done: Callable[[], object] = lambda: None,
) -> CompileReport:
    """Compile what the models' layers launch on each device's arch, one tensor-parallel rank's share of the heads.

    on_start is told how many binaries there are, on_done is called after each.
    """
    proofs = {proof.platform: proof for proof in read_fleet()}
    absent = {device.target: reason for device in devices if (reason := _explain_absence(proofs.get(device.platform)))}
    wanted: list[_Wanted] = []
    refused: list[KernelRow] = []
    for device in devices:
        if device.target not in absent:
            found, rows = _list_wanted(models, device, proofs[device.platform], tp)
            wanted += found
            refused += rows
    on_start(len(wanted))
    jobs = [
        Job(source=one.specialisation, proof=one.proof, arch=find_arch(one.device.platform, one.device.arch)) for one in wanted
    ]
    built = build_all(jobs, workers, on_done) if jobs else ()
    rows = [_make_row(one, job, result) for one, job, result in zip(wanted, jobs, built, strict=True)]
    if sample_models().keys() <= models.keys():
        rows = list(find_idle_spills(rows))
    return CompileReport(toolchain=find_toolchain(), rows=(*rows, *refused), absent=absent)


def find_idle_spills(rows: Sequence[KernelRow]) -> Iterator[KernelRow]:
    """The rows, with a fault for each kernel that a platform's file lists as spilling and none of whose binaries does."""
    listed = {(f"{proof.platform}:{arch}", kernel) for proof in read_fleet() for arch, kernel in proof.spills}
    spilling = {(row.target, row.kernel) for row in rows if row.figures is None or row.figures.spills}
    idle = listed - spilling
    for row in rows:
        is_idle = (row.target, row.kernel) in idle
        sentence = f"spills nothing, and matrix/{row.target.partition(':')[0]}.toml says that it does; take its [[spill]] away"
        yield replace(row, faults=(*row.faults, sentence)) if is_idle else row


def _explain_absence(proof: PlatformProof | None) -> str:
    """Why nothing can be compiled for a platform here, empty where it can."""
    if proof is None or proof.compiler is None:
        return "its kernels are not compiled ahead of time; the test suite runs them"
    toolchain = find_toolchain()
    if toolchain.version is None:
        return toolchain.reason
    if proof.compiler.name not in toolchain.compilers:
        have = ", ".join(toolchain.compilers) or "none"
        return f"triton {toolchain.version} here has the compilers {have}; {proof.proof} needs {proof.compiler.name}"
    return ""


def _list_wanted(
    models: Mapping[str, ModelShape], device: Device, proof: PlatformProof, tp: int
) -> tuple[list[_Wanted], list[KernelRow]]:
    """The binaries of a device, each once, and a row per model with a layer that its portable backend refuses."""
    users: dict[LaunchKey, list[str]] = {}
    sources: dict[LaunchKey, Specialisation] = {}
    refused: list[KernelRow] = []
    for (name, shape), asked in product(models.items(), LAYOUTS):
        for layer in _distinct_layers(shape):
            layout = shape.layout_of(layer, asked)
            request = Request(layer, device, shape.dtype or DEFAULT_DTYPE, layout, parallel=Parallel(tp=tp))
            try:
                found = specialisations(request)
            except NoBackend as error:
                if asked == LAYOUTS[0]:
                    refused.append(_refused_row(device, name, str(error)))
                continue
            for one in found:
                users.setdefault(one.key, []).append(name)
                sources.setdefault(one.key, one)
    wanted = [
        _Wanted(device=device, proof=proof, models=tuple(dict.fromkeys(users[key])), specialisation=one)
        for key, one in sources.items()
    ]
    return wanted, refused


def _distinct_layers(shape: ModelShape) -> Iterator[LayerShape]:
    """A layer of each sort that has attention of its own, draft layers included."""
    layers = (layer for layer in (*shape.layers, *shape.draft_layers) if layer.kind not in ("none", "cross"))
    yield from {replace(layer, layer_id=0, kv_source=0): layer for layer in layers}.values()


def _refused_row(device: Device, model: str, text: str) -> KernelRow:
    return KernelRow(target=device.target, kernel="(all)", models=(model,), specialisation=None, figures=None, faults=(text,))


def _make_row(wanted: _Wanted, job: Job, built: Built) -> KernelRow:
    source = wanted.specialisation
    may_spill = source.is_repair or (wanted.device.arch, source.name) in wanted.proof.spills
    faults = (built.refusal,) if built.figures is None else find_faults(built.figures, job.arch, may_spill=may_spill)
    return KernelRow(
        target=wanted.device.target,
        kernel=source.name,
        models=wanted.models,
        specialisation=source,
        figures=built.figures,
        faults=faults,
    )
