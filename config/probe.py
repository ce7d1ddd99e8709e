"""What only the model code says of a type's attention, learnt from modules built without memory."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .kinds import meaning

SMALL = 13
"""Layers to build: enough to see every layer type of a pattern."""


def read_facts(cls: Any) -> dict[str, Any]:
    """sink (layer types with sinks), scale (a fixed softmax scale), causal (False), position_bias; empty where nothing is special."""
    config, model = _build_model(cls)
    if model is None:
        return {}
    kinds = getattr(config, "layer_types", None)
    scales: set[float] = set()
    causal: set[bool] = set()
    sinks: dict[str, bool] = defaultdict(bool)
    relative = False
    for name, module in model.named_modules():
        if "attention" not in type(module).__name__.lower() or "cross" in type(module).__name__.lower():
            continue
        relative = relative or any("relative_attention_bias" in part for part, _ in module.named_children())
        if "vision" in name or "encoder." in name or "audio" in name:
            continue
        scale = getattr(module, "scaling", None)
        if isinstance(scale, (int, float)):
            scales.add(float(scale))
        if isinstance(getattr(module, "is_causal", None), bool):
            causal.add(module.is_causal)
        index = getattr(module, "layer_idx", None)
        kind = meaning(kinds[index], "layer_types") if kinds and isinstance(index, int) and index < len(kinds) else ""
        own = [part for part, value in module.named_parameters(recurse=False) if "sink" in part and value is not None]
        sinks[kind] = sinks[kind] or bool(own)
    return _facts(scales, causal, sinks, relative)


def _facts(scales: set[float], causal: set[bool], sinks: dict[str, bool], relative: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if any(sinks.values()):
        facts["sink"] = sorted(kind for kind, has in sinks.items() if has)
    if scales == {1.0}:
        facts["scale"] = 1.0
    if causal == {False}:
        facts["causal"] = False
    if relative:
        facts["position_bias"] = "relative"
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
        except Exception:  # a third-party constructor may raise anything; a model that cannot be built gives no facts
            continue
    return None, None
