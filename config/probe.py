"""What only the model code says of a type's attention, learnt from modules built without memory."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from .kinds import SLIDING, meaning

STATED_BY = {
    "scale": "attention_multiplier",
    "scale_power": "attention_multiplier",
    "scale_times": "attention_multiplier",
    "kv_heads_times": "swa_num_key_value_heads",
}
"""Facts that follow from a field where the config has it."""

WIDTHS = ("head_dim", "qk_head_dim", "attention_head_dim", "key_value_proj_dim")

AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModelForPreTraining",
)

SMALL = 13
"""Layers to build: enough to see every layer type of a pattern."""


@dataclasses.dataclass(slots=True)
class _Seen:
    """What the attention modules of one model show."""

    scales: set[float] = dataclasses.field(default_factory=set)
    widths: set[int] = dataclasses.field(default_factory=set)
    causal: set[bool] = dataclasses.field(default_factory=set)
    sinks: dict[str, bool] = dataclasses.field(default_factory=dict)
    kv_ratios: dict[str, set[float]] = dataclasses.field(default_factory=dict)
    window_extras: set[int] = dataclasses.field(default_factory=set)
    relative: bool = False
    alibi: bool = False


def read_facts(cls: Any) -> dict[str, Any]:
    """What is special about a type's attention; empty where nothing is.

    sink: layer types with sinks, "" for all. scale: a fixed softmax scale. scale_power: the power of head_dim that it
    is; scale_times: a factor on top of it. causal: what every attention module says. position_bias: "relative" or
    "alibi". kv_heads_times: KV heads of a layer type as a multiple of the config's. window_extra: keys that modules keep
    beyond the config's window, which then counts the earlier tokens alone.
    """
    config, model = _build_model(cls)
    if model is None:
        return {}
    seen = _Seen(alibi=hasattr(model, "build_alibi_tensor"))
    for name, module in model.named_modules():
        if "attention" in type(module).__name__.lower() and "cross" not in type(module).__name__.lower():
            _look(seen, config, name, module)
    facts = _facts(seen)
    stated = {name for name, field in STATED_BY.items() if getattr(config, field, None) is not None}
    return {name: fact for name, fact in facts.items() if name not in stated}


def _look(seen: _Seen, config: Any, name: str, module: Any) -> None:
    seen.relative = seen.relative or any("relative_attention_bias" in part for part, _ in module.named_children())
    if "vision" in name or "encoder." in name or "audio" in name:
        return
    kinds = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    kind = meaning(kinds[index], "layer_types") if kinds and isinstance(index, int) and index < len(kinds) else ""
    width = next((size for name in WIDTHS if isinstance(size := getattr(module, name, None), int)), 0)
    scale = getattr(module, "scaling", None)
    if isinstance(scale, (int, float)) or _is_unscaled(module):
        seen.scales.add(float(scale) if isinstance(scale, (int, float)) else 1.0)
        seen.widths.add(width)
    if isinstance(getattr(module, "is_causal", None), bool):
        seen.causal.add(module.is_causal)
    own = [part for part, value in module.named_parameters(recurse=False) if "sink" in part and value is not None]
    seen.sinks[kind] = seen.sinks.get(kind, False) or bool(own)
    window, stated = getattr(module, "sliding_window", None), _stated_window(config, index)
    if isinstance(window, int) and isinstance(stated, int):
        seen.window_extras.add(window - stated)
    ratio = _kv_ratio(config, module, width)
    if ratio is not None:
        seen.kv_ratios.setdefault(kind, set()).add(ratio)


def _stated_window(config: Any, index: Any) -> Any:
    """The config's window for one layer, also where layers differ."""
    try:
        shared = getattr(config, "sliding_window", None)
    except RuntimeError:
        shared = None
    if shared is not None or not isinstance(index, int):
        return shared
    try:
        return getattr(config.per_layer_config[index], "sliding_window", None)
    except (AttributeError, LookupError):
        return None


def _is_unscaled(module: Any) -> bool:
    """Whether a self-attention module's code never scales its scores (GPT-Neo, T5's copies)."""
    if not any(hasattr(module, name) for name in ("k_proj", "k", "key")):
        return False
    code = re.sub(r"#.*", "", inspect.getsource(type(module)))
    return "matmul" in code and re.search(r"scale|scaling|sqrt|0\.5|attention_interface", code) is None


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
    elif len(seen.widths) == 1 and len(seen.scales) == 1 and (width := max(seen.widths)) > 1:
        times = round(max(seen.scales) * width**0.5, 6)
        if times == round(width**-0.5, 6):
            facts["scale_power"] = -1.0
        elif times == round(2**0.5, 6):
            facts["scale_times"] = 2**0.5
    if len(seen.causal) == 1:
        facts["causal"] = True in seen.causal
    if seen.alibi:
        facts["position_bias"] = "alibi"
    if seen.relative:
        facts["position_bias"] = "relative"
    if seen.window_extras == {1}:
        facts["window_extra"] = 1
    doubled = {kind: int(min(ratios)) for kind, ratios in seen.kv_ratios.items() if kind == SLIDING and ratios == {2.0}}
    if doubled:
        facts["kv_heads_times"] = doubled
    return facts


def _build_model(cls: Any) -> tuple[Any, Any]:
    """A config of few layers and its model on the meta device; nothing where transformers has no model or refuses to build it."""
    import torch
    import transformers

    autos = [getattr(transformers, name) for name in AUTO_CLASSES]
    auto: Any = next((auto for auto in autos if cls in auto._model_mapping), None)
    name = cls.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    for kwargs in ({name: SMALL}, {}) if auto is not None else ():
        try:
            config = cls(**kwargs)
            with torch.device("meta"):
                return config, auto.from_config(config)
        except Exception:  # noqa: BLE001 - a third-party constructor may raise anything; a model that cannot be built gives no facts
            continue
    return None, None
