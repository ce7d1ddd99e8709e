"""What only the model code says of a type's attention, learnt from modules built without memory."""

from __future__ import annotations

import dataclasses
from typing import Any

from .kinds import SLIDING, meaning

SMALL = 13
"""Layers to build: enough to see every layer type of a pattern."""


@dataclasses.dataclass(slots=True)
class _Seen:
    """What the attention modules of one model show."""

    scales: set[float] = dataclasses.field(default_factory=set)
    inverse_widths: set[float] = dataclasses.field(default_factory=set)
    causal: set[bool] = dataclasses.field(default_factory=set)
    sinks: dict[str, bool] = dataclasses.field(default_factory=dict)
    kv_ratios: dict[str, set[float]] = dataclasses.field(default_factory=dict)
    relative: bool = False


def read_facts(cls: Any) -> dict[str, Any]:
    """What is special about a type's attention; empty where nothing is.

    sink: layer types with sinks, "" for all. scale: a fixed softmax scale. scale_power: the power of head_dim that it is.
    causal: False. position_bias: "relative". kv_heads_times: KV heads of a layer type as a multiple of the config's.
    """
    config, model = _build_model(cls)
    if model is None:
        return {}
    seen = _Seen()
    for name, module in model.named_modules():
        if "attention" in type(module).__name__.lower() and "cross" not in type(module).__name__.lower():
            _look(seen, config, name, module)
    return _facts(seen)


def _look(seen: _Seen, config: Any, name: str, module: Any) -> None:
    seen.relative = seen.relative or any("relative_attention_bias" in part for part, _ in module.named_children())
    if "vision" in name or "encoder." in name or "audio" in name:
        return
    kinds = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    kind = meaning(kinds[index], "layer_types") if kinds and isinstance(index, int) and index < len(kinds) else ""
    scale, width = getattr(module, "scaling", None), getattr(module, "head_dim", None)
    if isinstance(scale, (int, float)):
        seen.scales.add(float(scale))
        seen.inverse_widths.add(1.0 / width if isinstance(width, int) and width > 1 else 0.0)
    if isinstance(getattr(module, "is_causal", None), bool):
        seen.causal.add(module.is_causal)
    own = [part for part, value in module.named_parameters(recurse=False) if "sink" in part and value is not None]
    seen.sinks[kind] = seen.sinks.get(kind, False) or bool(own)
    ratio = _kv_ratio(config, module, width)
    if ratio is not None:
        seen.kv_ratios.setdefault(kind, set()).add(ratio)


def _kv_ratio(config: Any, module: Any, width: Any) -> float | None:
    """KV heads that a module's key projection has, as a multiple of what the config says."""
    weight = getattr(getattr(module, "k_proj", None), "weight", None)
    try:
        heads = config.num_key_value_heads
    except (AttributeError, RuntimeError):
        return None
    if weight is None or weight.dim() != 2 or not isinstance(width, int) or not isinstance(heads, int) or not heads * width:
        return None
    return float(weight.shape[0] / (heads * width))


def _facts(seen: _Seen) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if any(seen.sinks.values()):
        every = all(seen.sinks.values())
        facts["sink"] = [""] if every else sorted(kind for kind, has in seen.sinks.items() if has)
    if seen.scales == {1.0}:
        facts["scale"] = 1.0
    elif seen.scales and seen.scales == seen.inverse_widths:
        facts["scale_power"] = -1.0
    if seen.causal == {False}:
        facts["causal"] = False
    if seen.relative:
        facts["position_bias"] = "relative"
    doubled = {kind: int(min(ratios)) for kind, ratios in seen.kv_ratios.items() if kind == SLIDING and ratios == {2.0}}
    if doubled:
        facts["kv_heads_times"] = doubled
    return facts


def _build_model(cls: Any) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModel
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if cls not in MODEL_MAPPING:
        return None, None
    name = cls.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    for kwargs in ({name: SMALL}, {}):
        try:
            config = cls(**kwargs)
            with torch.device("meta"):
                return config, AutoModel.from_config(config)
        except Exception:  # noqa: BLE001 - a third-party constructor may raise anything; a model that cannot be built gives no facts
            continue
    return None, None
