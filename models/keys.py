"""Checkpoint keys -> parameters of the built module, by transformers' own renamings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    apply_renamings,
    dot_natural_key,
    rename_source_key,
)

from .dequantising import quantizer_of


def conversions(module: PreTrainedModel) -> list[Any]:
    """transformers' renamings and converters for this module, fresh: they collect tensors, so each pass needs its own."""
    return list(get_model_conversion_mapping(module, hf_quantizer=quantizer_of(module)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedKey:
    """Where one checkpoint key goes. pattern names the converter branch it feeds, None for a plain copy."""

    source: str
    target: str
    pattern: str | None
    canonical: str
    """The name before conversion: two keys that share it would fill the same place."""
    also: tuple[str, ...] = ()
    """Further parameters that are cut from the same tensor."""
    converter: int | None = None
    """Which of transformers' converters takes the key, None for a plain copy; only keys of one can be put together."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Every parameter that the key fills, wholly or in part."""
        return (self.target, *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renamed:
    """What transformers' renamings and one converter make of a key, before its base prefix is looked at."""

    name: str
    pattern: str | None
    before: str
    """The name before the converter."""


@dataclass(slots=True)
class KeyResolver:
    """Resolves keys against one module; the module is not touched.

    Some of transformers' renamings remember what they have seen and count on its order of the keys (`natural_order`).
    """

    module: PreTrainedModel
    state: dict[str, torch.Tensor] = field(init=False)
    renamings: list[Any] = field(init=False)
    converters: list[Any] = field(init=False)
    _templates: dict[str, _Renamed] | None = field(init=False)

    def __post_init__(self) -> None:
        mapping = conversions(self.module)
        self.state = self.module.state_dict()
        self.renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self.converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        # Keys that differ in their numbers alone are renamed alike, unless a rule names a number or keeps a memory.
        self._templates = {} if all(is_blind_to_numbers(entry) for entry in mapping) else None

    def resolve(self, key: str) -> ResolvedKey | None:
        """The parameter or persistent buffer that `key` feeds, None where there is none."""
        renamed = self._rename(key)
        target, pattern = self._with_base_prefix(renamed.name), renamed.pattern
        canonical = self._with_base_prefix(renamed.before)
        if target not in self.state and key in self.state:
            target, pattern, canonical = key, None, key
        if target not in self.state:
            return None
        place = target if pattern is None else canonical.removeprefix(f"{self.module.base_model_prefix}.")
        number = self._converter_of(pattern)
        return ResolvedKey(
            source=key, target=target, pattern=pattern, canonical=place, also=self._siblings(target, number), converter=number
        )

    def _converter_of(self, pattern: str | None) -> int | None:
        # transformers, too, looks a converter up by its pattern, and the last one that has it wins.
        if pattern is None:
            return None
        return next((n for n in reversed(range(len(self.converters))) if pattern in self.converters[n].source_patterns), None)

    def _siblings(self, target: str, number: int | None) -> tuple[str, ...]:
        if number is None:
            return ()
        first, *others = self.converters[number].target_patterns
        return tuple(name for name in (target.replace(first, other) for other in others) if name in self.state)

    def _rename(self, key: str) -> _Renamed:
        if self._templates is None:
            return self._rename_exactly(key)
        numbers = NUMBER.findall(key)
        if len(numbers) > len(STAND_INS):
            return self._rename_exactly(key)
        stand_ins = iter(STAND_INS)
        pattern = NUMBER.sub(lambda _match: next(stand_ins), key)
        template = self._templates.get(pattern)
        if template is None:
            exact = self._rename_exactly(pattern)
            template = _Renamed(name=_to_format(exact.name), pattern=exact.pattern, before=_to_format(exact.before))
            self._templates[pattern] = template
        return _Renamed(name=template.name.format(*numbers), pattern=template.pattern, before=template.before.format(*numbers))

    def _rename_exactly(self, key: str) -> _Renamed:
        before = apply_renamings(key, self.renamings)
        name, pattern = rename_source_key(before, [], self.converters)
        return _Renamed(name=name, pattern=pattern, before=before)

    def _with_base_prefix(self, name: str) -> str:
        """As transformers' loader does: taken off where that names something, put on where that does."""
        prefix = f"{self.module.base_model_prefix}."
        if name.startswith(prefix) and (bare := name[len(prefix) :]) in self.state:
            return bare
        return nested if (nested := prefix + name) in self.state else name

    def rename(self, key: str) -> str:
        """The key after transformers' renamings, for messages and rules about keys that resolve to nothing."""
        return self._rename(key).before

    def describe_converter(self, number: int) -> str:
        """What transformers does to the tensors of one converter, step by step."""
        return ", then ".join(type(operation).__name__ for operation in self.converters[number].operations)


NUMBER = re.compile(r"(?<![^.])\d{1,9}(?![^.])")
"""A component of a name that is a number: a layer's, an expert's."""

STAND_INS = tuple(str(990_000_001 + place) for place in range(8))
"""Numbers that no model counts to, one for each number of a name."""

_STAND_IN = re.compile("|".join(STAND_INS))


def is_blind_to_numbers(transform: Any) -> bool:
    """Whether one of transformers' rules treats all layers and experts alike, as far as its patterns show."""
    if type(transform) not in (WeightRenaming, WeightConverter, PrefixChange):
        return False
    patterns = (re.sub(r"\\d|\{[\d,]*\}|\\\d", "", pattern) for pattern in transform.source_patterns)
    return not any(re.search(r"(?<![A-Za-z_0-9])\d|\[[^\]]*\d", pattern) for pattern in patterns)


def _to_format(renamed: str) -> str:
    """What str.format fills with the numbers of a key, from what became of the stand-ins for them."""
    escaped = renamed.replace("{", "{{").replace("}", "}}")
    return _STAND_IN.sub(lambda match: f"{{{STAND_INS.index(match.group())}}}", escaped)


@lru_cache(maxsize=1 << 14)
def _order_of(part: str) -> Any:
    return dot_natural_key(part)[0]


def natural_order(key: str) -> list[Any]:
    """What to sort keys by to have them in the order in which transformers' loader takes them."""
    try:
        return [_order_of(part) for part in key.split(".")]
    except ValueError:
        # A number too long to be read as one, or a digit that is none, as text.
        return [(1, key)]


def find_collisions(resolved: Mapping[str, ResolvedKey]) -> dict[str, tuple[str, ...]]:
    """Parameters that two keys would fill: the same place twice, a ready tensor beside parts of it, or two kinds of parts."""
    places: dict[str, list[str]] = defaultdict(list)
    kinds: dict[str, int | None] = {}
    mixed: dict[str, list[str]] = {}
    for key, place in resolved.items():
        places[place.canonical].append(key)
        for target in place.targets:
            if kinds.setdefault(target, place.converter) != place.converter:
                mixed[target] = []
    for key, place in resolved.items() if mixed else ():
        for target in mixed.keys() & set(place.targets):
            mixed[target].append(key)
    twice = {name: tuple(keys) for name, keys in places.items() if len(keys) > 1}
    return twice | {target: tuple(keys) for target, keys in mixed.items()}
