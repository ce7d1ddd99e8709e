"""Checkpoint keys -> parameters of the built module, by transformers' own renamings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    apply_renamings,
    rename_source_key,
)


def conversions(module: PreTrainedModel) -> list[Any]:
    """transformers' renamings and converters for this module, fresh: they collect tensors, so each pass needs its own."""
    return list(get_model_conversion_mapping(module))


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


@dataclass(slots=True)
class KeyResolver:
    """Resolves keys against one module; pure, the module is not touched."""

    module: PreTrainedModel
    state: dict[str, torch.Tensor] = field(init=False)
    renamings: list[Any] = field(init=False)
    converters: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        mapping = conversions(self.module)
        self.state = self.module.state_dict()
        self.renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self.converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]

    def resolve(self, key: str) -> ResolvedKey | None:
        """The parameter or persistent buffer that `key` feeds, None where there is none."""
        target, pattern = self._rename(key, self.renamings, self.converters)
        canonical = self._rename(key, self.renamings, [])[0]
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
        return next((n for n in reversed(range(len(self.converters))) if pattern in self.converters[n].source_patterns), None)

    def _siblings(self, target: str, number: int | None) -> tuple[str, ...]:
        if number is None:
            return ()
        first, *others = self.converters[number].target_patterns
        return tuple(name for name in (target.replace(first, other) for other in others) if name in self.state)

    def _rename(self, key: str, renamings: list[Any], converters: list[Any]) -> tuple[str, str | None]:
        return rename_source_key(key, renamings, converters, self.module.base_model_prefix, self.state)

    def rename(self, key: str) -> str:
        """The key after transformers' renamings, for messages and rules about keys that resolve to nothing."""
        return apply_renamings(key, self.renamings)


def find_collisions(resolved: Mapping[str, ResolvedKey]) -> dict[str, tuple[str, ...]]:
    """Parameters that two keys would fill: the same place twice, a ready tensor beside parts of it, or two kinds of parts."""
    places: dict[str, list[str]] = defaultdict(list)
    fillers: dict[str, dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, place in resolved.items():
        places[place.canonical].append(key)
        for target in place.targets:
            fillers[target][place.converter].append(key)
    collisions = {name: tuple(keys) for name, keys in places.items() if len(keys) > 1}
    for target, kinds in fillers.items():
        if len(kinds) > 1:
            collisions[target] = tuple(key for keys in kinds.values() for key in keys)
    return collisions
