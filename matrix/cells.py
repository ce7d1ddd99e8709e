"""The support table: for every model, arch, dtype, layout and feature who serves it, how far that is proved, or why nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hal.common.backends.proof import weakest
from hal.common.backends.registry import backends, platforms
from hal.common.backends.select import select
from hal.common.contract.backend import PHASES
from hal.common.contract.device import Device
from hal.common.contract.errors import NoBackend
from hal.common.contract.parallel import Parallel
from hal.common.contract.reason import Reason
from hal.common.contract.request import Request
from hal.common.contract.selection import Selection
from hal.config import LayerShape, ModelShape
from hal.config.runs import group_layers

from .features import FEATURES
from .fleet import read_fleet
from .proof import judge

PLAIN = ""

Layers = Sequence[tuple[LayerShape, int]]
"""Layers of which none is like another, each with how many are like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a model is to run: dtype, cache layout, and one feature beyond what it asks for itself, "" for none."""

    dtype: str = "bfloat16"
    kv_layout: str = "auto"
    feature: str = PLAIN


DEFAULT_VARIANTS = (
    Variant(),
    Variant(dtype="float16"),
    Variant(dtype="float32"),
    Variant(kv_layout="fp8"),
    *(Variant(feature=name) for name in FEATURES),
)
"""What the table tries where nothing is asked for: everything alone, nothing crossed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination. backends: who serves its layers, the first layer's first, none where some layer has nobody.

    providers: the calls that each backend lends to some layer, a phase named where the other's comes from elsewhere. state:
    of hal.common.backends.proof, the weakest of its calls'. bytes_per_token: one rank's, index keys included, 0 where nobody
    serves it. reasons: why not, sentences of each backend of the platform.
    """

    model: str
    target: str
    dtype: str
    kv_layout: str
    feature: str
    backends: tuple[str, ...]
    providers: Mapping[str, tuple[str, ...]]
    state: str
    bytes_per_token: int
    reasons: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What the cell is about."""
        return self.model, self.target, self.dtype, self.kv_layout, self.feature

    @property
    def is_served(self) -> bool:
        """Whether every layer has a backend."""
        return bool(self.backends)


def fleet_targets() -> tuple[Device, ...]:
    """Every arch of the platforms that have a file here."""
    named = [proof.platform for proof in read_fleet()]
    return tuple(
        Device.from_arch(f"{name}:{arch.name}")
        for name, platform in platforms().items()
        if name in named
        for arch in platform.archs()
    )


def compute_cells(
    models: Mapping[str, ModelShape], devices: Sequence[Device], variants: Sequence[Variant] = DEFAULT_VARIANTS, tp: int = 1
) -> tuple[Cell, ...]:
    """A cell for every combination in which the feature concerns some layer, all vendor libraries taken as installed."""
    alike = {name: _group_attending(shape) for name, shape in models.items()}
    return tuple(
        cell
        for name, shape in models.items()
        for device in devices
        for variant in variants
        for cell in _compute(name, shape, alike[name], device, variant, tp)
    )


def _group_attending(shape: ModelShape) -> Layers:
    return [(layer, len(ids)) for layer, ids in group_layers(shape.layers) if layer.kind not in ("none", "cross")]


def _compute(name: str, shape: ModelShape, layers: Layers, device: Device, variant: Variant, tp: int) -> Iterator[Cell]:
    feature = FEATURES.get(variant.feature)
    if feature is not None and not any(feature.concerns is None or feature.concerns(layer) for layer, _ in layers):
        return
    requests = [(_request(shape, layer, device, variant, tp), count) for layer, count in layers]
    if not requests:
        return
    chosen: list[tuple[Request, Selection, int]] = []
    reasons: dict[str, None] = {}
    for request, count in requests:
        try:
            chosen.append((request, select(request), count))
        except NoBackend as refusal:
            reasons.update(dict.fromkeys(_say_refusals(device, refusal.rejected)))
    is_served = not reasons
    yield Cell(
        model=name,
        target=device.target,
        dtype=variant.dtype,
        kv_layout=variant.kv_layout,
        feature=variant.feature,
        backends=tuple(dict.fromkeys(selection.backend for _, selection, _ in chosen)) if is_served else (),
        providers=_list_providers([selection for _, selection, _ in chosen]) if is_served else {},
        state=weakest([judge(each, device, variant.dtype).state for _, each, _ in chosen]) if is_served else "unsupported",
        bytes_per_token=sum(_bytes(*each) for each in chosen) if is_served else 0,
        reasons=tuple(reasons),
    )


def _request(shape: ModelShape, layer: LayerShape, device: Device, variant: Variant, tp: int) -> Request:
    """The layer's request, with the feature where that concerns the layer."""
    request = Request(layer, device, variant.dtype, shape.layout_of(layer, variant.kv_layout), parallel=Parallel(tp=tp))
    feature = FEATURES.get(variant.feature)
    concerned = feature is not None and (feature.concerns is None or feature.concerns(layer))
    return feature.add(request) if feature is not None and concerned else request


def _say_refusals(device: Device, rejected: Mapping[str, tuple[Reason, ...]]) -> Iterator[str]:
    for name, found in sorted(rejected.items()):
        if name in backends() and backends()[name].platform == device.platform:
            for reason in found:
                yield f"{name}: {reason.without(name)}"


def _list_providers(selections: Sequence[Selection]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for selection in selections:
        for key, provider in selection.providers.items():
            call = key.partition(".")[0]
            both = {selection.providers.get(f"{call}.{phase}", provider) for phase in PHASES}
            found.setdefault(provider, {})[call if len(both) == 1 else key] = None
    return {provider: tuple(calls) for provider, calls in found.items()}


def _bytes(request: Request, selection: Selection, count: int) -> int:
    layer, tp = request.layer, request.parallel.tp
    kv = layer.kv_bytes_per_token(selection.kv_layout, request.dtype, tp)
    return count * (kv + layer.index_bytes_per_token(selection.index_layout or selection.kv_layout, request.dtype))
