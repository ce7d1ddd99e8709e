"""Writes known_types.jsonl from the installed transformers: `python -m hal.config.generate`.

Every config class is instantiated with its defaults and with several layer counts; what the class computes from the layer
count is stored as a pattern. The attention modules of the model it belongs to are built without memory (device "meta") to
learn what no config says: sinks, a fixed softmax scale, bidirectional attention.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from .code_reads import attention_fields, masks_causally, own_fields
from .fields import OUTER
from .harmless import BEFORE_OR_AFTER, IN_ITS_CLASS, is_harmless, is_harmless_by_name, may_matter
from .harmless import DATA as HARMLESS
from .kinds import meaning
from .known_types import DATA, WINDOWED, Pattern
from .names import FIELDS as MODEL_FIELDS
from .names import GROUP_FIELDS, SPELLINGS
from .probe import read_facts
from .translations import find_computed, find_periods, find_window_turns

FIELDS = MODEL_FIELDS | GROUP_FIELDS
LAYER_COUNTS = (*range(1, 27), 30, 31, 32, 36, 37, 40, 48, 49)
LISTS = ("layer_types", "indexer_types", "num_attention_heads_per_layer", "no_rope_layers")
DERIVED = (
    "num_key_value_heads",
    "head_dim",
    "d_head",
    "qk_head_dim",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "kv_source_layers",
    "num_decoder_layers",
    "kv_sharing_modes",
)
"""What the reader derives itself where a class leaves it unset."""

COMPUTED = (
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "sliding_window",
    "attention_head_dim",
    "tie_word_embeddings",
)
"""What some classes compute without declaring a field for it."""


def main() -> None:
    """Generate the data file, one line per config type."""
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    classes = dict(config_classes())
    harmless = find_harmless(classes.values())
    HARMLESS.write_text("\n".join(sorted(harmless)) + "\n", encoding="utf-8")
    entries = {name: describe(cls) for name, cls in classes.items()}
    lines = [json.dumps({"type": name, **entries[name]}, sort_keys=False) for name in sorted(entries)]
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")


def config_classes() -> Iterator[tuple[str, type]]:
    """Each config type with its class: transformers' mapping, then nested classes that the mapping lacks."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    seen: dict[str, type] = {}
    queue = [(name, CONFIG_MAPPING[name]) for name in CONFIG_MAPPING]
    while queue:
        name, cls = queue.pop(0)
        if name in seen:
            continue
        seen[name] = cls
        yield name, cls
        queue += [(_type_name(spec.config_class, seen), spec.config_class) for spec in _specs(cls).values() if _is_class(spec)]


def _type_name(cls: type, seen: dict[str, type]) -> str:
    """A class's model_type, or its own name where that type belongs to another class."""
    name = str(getattr(cls, "model_type", "") or cls.__name__)
    return name if seen.get(name, cls) is cls else cls.__name__


def _specs(cls: type) -> dict[str, Any]:
    return dict(getattr(cls, "sub_configs_defaults", None) or {})


def _is_class(spec: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(spec.config_class, type) and issubclass(spec.config_class, PreTrainedConfig)


def describe(cls: Any) -> dict[str, Any]:
    """One type's entry, without its name; empty parts are left out."""
    instance = build(cls)
    parts = described_fields(cls, instance)
    parts["facts"] = _flat_fact(cls)
    parts |= accounted_fields(cls, instance)
    if instance is not None:
        parts["patterns"] = _patterns(cls)
        parts["by_kind"] = _by_kind(instance)
        parts["windows"] = find_window_turns(lambda **kwargs: build(cls, **kwargs), _layers_name(cls))
        parts["facts"] |= read_facts(cls)
    if masks_causally(cls):
        parts["facts"].setdefault("causal", True)
    if parts["facts"].get("causal") and "is_decoder" not in parts["fields"]:
        # Causal is what the reader assumes; it needs telling only where an `is_decoder` switch speaks against it.
        del parts["facts"]["causal"]
    return {name: part for name, part in parts.items() if part}


def accounted_fields(cls: Any, instance: Any) -> dict[str, Any]:
    """The class's fields that hal does not read: those that its attention code reads, with defaults, and the rest."""
    own = own_fields(cls)
    matters = {
        name for name in own & attention_fields(cls) - FIELDS - BEFORE_OR_AFTER - IN_ITS_CLASS if not is_harmless_by_name(name)
    }
    rest = {name for name in own - matters - FIELDS if not is_harmless(name)}
    if _specs(cls) and instance is not None:
        # What a class of several parts puts at its root by itself is no word on the text part.
        rest |= {name for name in vars(instance) if name in FIELDS} - own - set(_specs(cls)) - OUTER
    defaults = {name: plain(_attribute(instance, name)) for name in sorted(matters)}
    return {
        "unread": {name: None if value is NotImplemented else value for name, value in defaults.items()},
        "silent": sorted(rest),
        "computed": find_computed(lambda **kwargs: build(cls, **kwargs), own, _aliases(cls)),
        "periods": find_periods(lambda **kwargs: build(cls, **kwargs), own, LISTS, _layers_name(cls)),
    }


def _aliases(cls: Any) -> dict[str, str]:
    """Names that the class has beside a field's own, as hal spells the field."""
    return dict(cls.attribute_map)


def find_harmless(classes: Iterable[Any]) -> set[str]:
    """Names that some class declares and the attention code of none reads; without those whose words speak of attention."""
    from transformers import GenerationConfig, PreTrainedConfig

    named = {name for name in dir(PreTrainedConfig) if not name.startswith("_")}
    generation = set(GenerationConfig().to_dict()) | set(GenerationConfig._get_default_generation_params())
    matters: set[str] = set()
    for cls in classes:
        named |= own_fields(cls) | set(_specs(cls)) | {name for name in vars(cls) if not name.startswith("_")}
        matters |= attention_fields(cls)
    certain = {name for name in named - matters if not may_matter(name)} | generation
    return {name for name in certain - FIELDS if not is_harmless_by_name(name)}


def described_fields(cls: Any, instance: Any) -> dict[str, dict[str, Any]]:
    """The parts of an entry that one default instance shows."""
    return {
        "fields": _fields(cls, instance),
        "renamed": {name: target for name, target in cls.attribute_map.items() if name in FIELDS},
        "nested": dict(_nested(cls, instance)),
    }


def build(cls: Any, **kwargs: Any) -> Any:
    """An instance, or None where the class refuses these arguments."""
    try:
        return cls(**kwargs)
    except Exception:  # noqa: BLE001 - a third-party constructor may raise anything; a refused instance simply gives no data
        return None


def _fields(cls: Any, instance: Any) -> dict[str, Any]:
    """Class defaults of the fields that are read; where the class puts another value in their place, that one."""
    found: dict[str, Any] = {}
    targets = {target for name, target in cls.attribute_map.items() if name in FIELDS}
    for item in dataclasses.fields(cls):
        if (item.name in FIELDS or item.name in targets) and item.name not in _specs(cls):
            value = plain(_effective(item, _attribute(instance, item.name)))
            if value is not NotImplemented and not (value is None and item.name in ("architectures", "dtype")):
                found[item.name] = value
    for name in COMPUTED:
        value = _attribute(instance, name)
        if name not in found and name not in cls.attribute_map and isinstance(value, int):
            found[name] = value
    return found


def _effective(item: dataclasses.Field[Any], computed: Any) -> Any:
    """A field's default: as declared, unless the class replaces it by something that no rule derives."""
    declared = item.default
    if declared is dataclasses.MISSING:
        declared = item.default_factory() if item.default_factory is not dataclasses.MISSING else None
    if computed is None or (declared is None and item.name in DERIVED):
        return declared
    if isinstance(computed, list) and item.name in LISTS:
        return declared
    return computed


def _attribute(instance: Any, name: str) -> Any:
    try:
        return getattr(instance, name, None)
    except RuntimeError:
        return None


def plain(value: Any) -> Any:
    """The value as JSON keeps it; NotImplemented for what JSON cannot hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "to_dict"):
        return {key: plain(item) for key, item in value.to_dict().items() if key in FIELDS}
    return NotImplemented


def _nested(cls: Any, instance: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The type of each sub-config; fixed where the class takes no other; given: what differs from that type's own defaults."""
    for name, spec in _specs(cls).items():
        entry: dict[str, Any] = {"type": spec.model_type, "fixed": False}
        if _is_class(spec):
            entry = {"type": _type_name(spec.config_class, {}), "fixed": True}
        made = _attribute(instance, name)
        given = {key: plain(value) for key, value in (spec.init_kwargs or {}).items() if key in FIELDS} | _differences(made)
        if given:
            entry["given"] = given
        if spec.optional:
            entry["optional"] = True
        yield name, entry


def _differences(made: Any) -> dict[str, Any]:
    """What a composite class changes in a nested config that it makes itself."""
    plain_one = build(type(made)) if made is not None else None
    if plain_one is None or not dataclasses.is_dataclass(made):
        return {}
    names = [item.name for item in dataclasses.fields(made) if item.name in FIELDS and item.name not in LISTS]
    pairs = {name: (_attribute(made, name), _attribute(plain_one, name)) for name in names}
    return {name: plain(mine) for name, (mine, own) in pairs.items() if mine != own and plain(mine) is not NotImplemented}


def _patterns(cls: Any) -> dict[str, dict[str, list[Any]]]:
    found = {}
    instances = [made for count in LAYER_COUNTS if (made := build(cls, **{_layers_name(cls): count})) is not None]
    for name in LISTS:
        samples = [value for made in instances if (value := _per_layer_list(made, name)) is not None]
        fitted = _fit_any(samples) if len({len(sample) for sample in samples}) > 2 else None
        if fitted is not None:
            found[name] = {part: items for part, items in dataclasses.asdict(fitted).items() if items}
    own = own_fields(cls)
    if "use_sliding_window" in own and "max_window_layers" not in own:
        windowed = {"use_sliding_window": True, "sliding_window": 64}
        made = [build(cls, **windowed, **{_layers_name(cls): count}) for count in LAYER_COUNTS]
        samples = [value for one in made if (value := _per_layer_list(one, "layer_types")) is not None]
        fitted = _fit_any(samples) if samples else None
        if fitted is not None:
            found[WINDOWED] = {part: items for part, items in dataclasses.asdict(fitted).items() if items}
    return found


def _fit_any(samples: list[list[Any]]) -> Pattern | None:
    """A pattern from the first layer, or from the last; where tiny models follow another rule, one for the larger ones."""
    for least in (1, 8):
        chosen = [sample for sample in samples if len(sample) >= least]
        forward = fit(chosen)
        backward = None if forward else fit([sample[::-1] for sample in chosen])
        if forward or backward:
            return forward or dataclasses.replace(backward or Pattern(), backward=True)
    return None


def _layers_name(cls: Any) -> str:
    return str(cls.attribute_map.get("num_hidden_layers", "num_hidden_layers"))


def _per_layer_list(instance: Any, name: str) -> list[Any] | None:
    """The list that a class fills in for its layers, also where it is spread over a heterogeneous config."""
    try:
        values = [getattr(instance, spelling, None) for spelling in SPELLINGS.get(name, (name,))]
        value = next((one for one in values if isinstance(one, list)), None)
    except RuntimeError:
        value = [getattr(view, name) for view in instance.per_layer_config]
    count = getattr(instance, "num_hidden_layers", None)
    return value if isinstance(value, list) and len(value) == count else None


def fit(samples: Iterable[list[Any]]) -> Pattern | None:
    """The smallest pattern that gives every sample for its own length, or None."""
    lists = [tuple(sample) for sample in samples]
    longest = max(lists, key=len)
    sizes = sorted(
        ((head, cycle, tail) for head in range(5) for cycle in range(1, 13) for tail in range(3)),
        key=lambda size: (sum(size), size),
    )
    for head, cycle, tail in sizes:
        if head + cycle + tail > len(longest):
            continue
        candidate = Pattern(
            head=longest[:head], cycle=longest[head : head + cycle], tail=longest[len(longest) - tail :] if tail else ()
        )
        if all(candidate.expand(len(sample)) == sample for sample in lists):
            return candidate
    return None


def _by_kind(instance: Any) -> dict[str, dict[str, Any]]:
    """Per-layer values of a heterogeneous class, where all layers of one type agree."""
    spec = getattr(instance, "_heterogeneity_spec", None)
    types = getattr(instance, "layer_types", None)
    if spec is None or types is None:
        return {}
    groups: dict[str, list[dict[str, Any]]] = {}
    for index, kind in enumerate(types):
        given = {key: value for key, value in spec.per_layer_overrides.get(index, {}).items() if key in FIELDS}
        groups.setdefault(meaning(kind, "layer_types"), []).append(given)
    return {kind: given[0] for kind, given in groups.items() if given[0] and all(one == given[0] for one in given)}


def _flat_fact(cls: Any) -> dict[str, Any]:
    """Whether a composite class hands text fields stated at its own level down to its text config (the old flat files)."""
    made = build(cls, num_hidden_layers=7) if _specs(cls) else None
    text = _attribute(made, "text_config")
    return {"flat": True} if text is not None and _attribute(text, "num_hidden_layers") == 7 else {}


if __name__ == "__main__":
    main()
