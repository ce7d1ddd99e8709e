"""What the scores are multiplied by before the softmax."""

from __future__ import annotations

import math

from .layer_view import LayerView
from .source import MISSING, Level
from .values import as_number, as_text


def read_scale(layer: LayerView, head_dim: int, is_mla: bool) -> float:
    """The softmax scale: what the config states, else what the type fixes, else 1/sqrt(width), corrected for yarn in MLA."""
    stated = _stated(layer, head_dim)
    if stated is not None:
        return stated
    fixed = layer.fields.known.facts.get("scale")
    if isinstance(fixed, (int, float)) or layer.fields.flag("scale_attn_weights") is False:
        return float(fixed) if isinstance(fixed, (int, float)) else 1.0
    known = layer.fields.known.facts.get("scale_power")
    power = known if isinstance(known, float) else -0.5
    times = layer.fields.known.facts.get("scale_times")
    scale: float = head_dim**power * (times if isinstance(times, float) else 1.0) * (_yarn_correction(layer) if is_mla else 1.0)
    if layer.fields.flag("scale_attn_by_inverse_layer_idx"):
        layer.varies = True
        return scale / (layer.layer_id + 1)
    return scale


def _stated(layer: LayerView, head_dim: int) -> float | None:
    multiplier = layer.number("attention_multiplier")
    if multiplier is not None:
        return multiplier
    if layer.fields.flag("mup_use_scaling"):
        # Phi-3-small: scores over head_dim and not its root, times a multiplier that is 1 where none is given.
        return (layer.number("mup_attn_multiplier") or 1.0) / head_dim
    scalar = layer.number("query_pre_attn_scalar")
    if scalar is not None:
        return float(scalar**-0.5)
    group = layer.fields.nested("attn_config")
    return _number(group, "softmax_scale") if group else None


def _number(level: Level, name: str) -> float | None:
    value = level.read(name)
    return None if value is MISSING else as_number(value, level.describe(name))


def _yarn_correction(layer: LayerView) -> float:
    """The square of yarn's temperature over all lanes; DeepSeek-V2's rule, asked for by `mscale_all_dim`."""
    rope = layer.fields.nested("rope_parameters")
    if rope is None:
        return 1.0
    rope = rope.child(layer.kind) or rope
    kind = next((value for name in ("rope_type", "type") if (value := rope.read(name)) is not MISSING), None)
    if as_text(kind, rope.describe("rope_type")) in (None, "default"):
        return 1.0
    mscale, factor = _number(rope, "mscale_all_dim"), _number(rope, "factor")
    if mscale is None or factor is None or factor <= 1:
        return 1.0
    return (0.1 * mscale * math.log(factor) + 1.0) ** 2
