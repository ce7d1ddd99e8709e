"""What can be asked of a layer beyond what its model asks, each as a change of the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from hal.common.contract.parallel import Parallel
from hal.common.contract.request import Request
from hal.config import LayerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature: what it means, and a request with it. concerns: which layers have it, None for all."""

    meaning: str
    add: Callable[[Request], Request]
    concerns: Callable[[LayerShape], bool] | None = None


def _is_plain(layer: LayerShape) -> bool:
    return layer.kind == "attention"


def _layer(**changes: object) -> Callable[[Request], Request]:
    return lambda request: replace(request, layer=replace(request.layer, **changes))  # type: ignore[arg-type]


def _request(**changes: object) -> Callable[[Request], Request]:
    return lambda request: replace(request, **changes)  # type: ignore[arg-type]


def _share_tokens(request: Request) -> Request:
    return replace(request, parallel=Parallel(tp=request.parallel.tp, dcp=2))


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        "sinks": Feature(meaning="attention sinks on every layer", add=_layer(sink=True)),
        "window": Feature(meaning="a window of 4,096 keys", add=_layer(window=4096), concerns=_is_plain),
        "softcap": Feature(meaning="scores capped at 50", add=_layer(softcap=50.0), concerns=_is_plain),
        "chunk": Feature(meaning="chunks of 8,192 keys", add=_layer(chunk=8192), concerns=_is_plain),
        "dcp": Feature(meaning="2 decode-context ranks", add=_share_tokens),
        "graphs": Feature(meaning="a captured graph of single-token decodes", add=_request(graphs="uniform_single")),
        "spec": Feature(meaning="4 speculative tokens", add=_request(num_spec_tokens=4)),
        "lse": Feature(meaning="an LSE beside the result", add=_request(need_lse=True)),
        "deterministic": Feature(meaning="results that do not vary", add=_request(deterministic=True)),
    }
)
