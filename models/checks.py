"""What a module passes to its attention call, held against the layer's shape: honoured, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hal.config import LayerShape

from .errors import NEXT_STEP, UnsupportedModelError
from .interface import MASK_RULE, AttentionCall

HARMLESS = frozenset({"position_ids", "use_cache", "cache_position", "return_dict", "logits_to_keep"})
"""Keywords that change nothing here: positions are applied before the call, caches are hal's, logits come after it."""

FAR = 1 << 24


def check_call(layer: LayerShape, module: torch.nn.Module, call: AttentionCall) -> torch.Tensor | None:
    """The sink that the module passed, or None; UnsupportedModelError for any value that the layer's shape does not hold."""
    if not _is_scaled(layer, call) and abs((call.scaling or 0.0) - layer.softmax_scale) > 1e-6 * abs(layer.softmax_scale):
        _refuse(layer, module, "scaling", call.scaling, f"a softmax scale of {layer.softmax_scale}")
    if call.dropout:
        _refuse(layer, module, "dropout", call.dropout, "inference without dropout")
    sink: torch.Tensor | None = None
    for name, value in call.keywords.items():
        if value is None or value is False or name in HARMLESS or name.startswith("output_"):
            continue
        if isinstance(value, float | int) and value == 0.0:
            continue
        if name in ("s_aux", "sinks"):
            sink = value
        elif name not in EXPECTED:
            raise UnsupportedModelError(
                f"layer {layer.layer_id} ({type(module).__name__}) passes {name}={_shorten(value)} to attention, "
                f"which hal does not know and will not ignore; {NEXT_STEP}"
            )
        else:
            _check_expected(layer, module, name, value)
    return sink


def scaled_query(layer: LayerShape, query: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """The query that the layer's own scale is applied to: a module that asks for a scale of 1 has applied it already."""
    return query / layer.softmax_scale if call.scaling == 1.0 != layer.softmax_scale else query


def _is_scaled(layer: LayerShape, call: AttentionCall) -> bool:
    return call.scaling is None or (call.scaling == 1.0 and layer.kind == "attention")


def _check_expected(layer: LayerShape, module: torch.nn.Module, name: str, value: Any) -> None:
    expected = EXPECTED[name](layer)
    if expected is not ANY and (isinstance(value, torch.Tensor) or expected != value):
        _refuse(layer, module, name, value, f"{name}={expected}")


ANY = object()

EXPECTED: dict[str, Callable[[LayerShape], Any]] = {
    "sliding_window": lambda layer: layer.window,
    "softcap": lambda layer: layer.softcap,
    "is_causal": lambda layer: layer.causal,
    "indices": lambda layer: ANY if layer.indexer is not None else None,
}
"""Keywords that must repeat what the shape says. Indices are recomputed by hal from the indexer's products."""


def check_first_call(layer: LayerShape, module: torch.nn.Module, call: AttentionCall) -> None:
    """Raise UnsupportedModelError; the parts of a call that cannot change from step to step, so checked once."""
    sink = check_call(layer, module, call)
    if (sink is not None) != layer.sink:
        _refuse(layer, module, "s_aux", sink, "a sink per head" if layer.sink else "no sink")
    if layer.softcap is not None and call.keywords.get("softcap") is None:
        _refuse(layer, module, "softcap", None, f"softcap={layer.softcap}")
    is_causal = getattr(module, "is_causal", layer.causal)
    if is_causal is not None and bool(is_causal) != layer.causal:
        _refuse(layer, module, "is_causal", is_causal, f"causal={layer.causal}")
    rule = getattr(call.mask, MASK_RULE, None)
    if rule is not None:
        _check_mask_rule(layer, module, rule)
    elif call.mask is not None and layer.kind != "compressed" and not _is_open(call.mask):
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(module).__name__}) puts a mask of its own ({call.mask.dtype}, "
            f"{list(call.mask.shape)}) in place of the one it was given; hal masks by lengths, windows and chunks; "
            f"{NEXT_STEP}"
        )


def _is_open(mask: torch.Tensor) -> bool:
    # Some modules widen a mask to their keys; the column that was given stays the first.
    return mask.dtype == torch.bool and bool(mask[..., :1].all())


def _check_mask_rule(layer: LayerShape, module: torch.nn.Module, rule: Callable[..., torch.Tensor]) -> None:
    query, visible = _sample_mask(layer)
    keys = torch.tensor(list(visible))
    zero = torch.zeros((), dtype=torch.long)
    try:
        found = rule(zero, zero, torch.full_like(keys, query), keys).expand(keys.shape).tolist()
    except IndexError as error:
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(module).__name__}) masks by the prompt's content, not by position alone; {NEXT_STEP}"
        ) from error
    wrong = {query - key: seen for key, seen in zip(visible, found, strict=True) if seen != visible[key]}
    if wrong:
        seen = ", ".join(f"{distance} tokens back: {'seen' if is_seen else 'hidden'}" for distance, is_seen in wrong.items())
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(module).__name__}) has a mask ({seen}) that does not match its config: "
            f"window {layer.window}, chunk {layer.chunk}, causal {layer.causal}; {NEXT_STEP}"
        )


def _sample_mask(layer: LayerShape) -> tuple[int, dict[int, bool]]:
    """A query position and, for telling key positions, whether the shape lets the query see them."""
    query = FAR if layer.chunk is None else FAR // layer.chunk * layer.chunk + layer.chunk - 1
    distances = {-1, 0, 1, 3}
    for edge in (layer.window, layer.chunk):
        if edge is not None:
            distances |= {edge - 1, edge}
    if layer.window is None and layer.chunk is None:
        distances.add(FAR - 1)
    return query, {query - distance: _is_visible(layer, query, distance) for distance in sorted(distances)}


def _is_visible(layer: LayerShape, query: int, distance: int) -> bool:
    if distance < 0:
        return not layer.causal
    in_window = layer.window is None or distance < layer.window
    in_chunk = layer.chunk is None or query // layer.chunk == (query - distance) // layer.chunk
    return in_window and in_chunk


def _refuse(layer: LayerShape, module: torch.nn.Module, name: str, value: object, expected: str) -> None:
    raise UnsupportedModelError(
        f"layer {layer.layer_id} ({type(module).__name__}) passes {name}={_shorten(value)}, "
        f"but its config describes {expected}; hal computes what the config says, so correct it or {NEXT_STEP}"
    )


def _shorten(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
