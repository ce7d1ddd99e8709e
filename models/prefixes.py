"""Checkpoints whose wrapper has another name than the built module's: the renaming that explains them, if there is one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .checkpoint_header import StoredTensor
from .errors import CheckpointError
from .keys import KeyResolver, ResolvedKey

MAX_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRule:
    """Keys that start with `strip` are read as if they started with `add` ("" is the root)."""

    strip: str
    add: str

    def apply(self, key: str) -> str | None:
        """The renamed key, None where the rule does not apply or would rename a leaf or a list instead of a wrapper."""
        rest = key if not self.strip else key.removeprefix(f"{self.strip}.")
        first, _, inner = rest.partition(".")
        if (self.strip and rest == key) or not inner or first.isdigit():
            return None
        return f"{self.add}.{rest}" if self.add else rest

    def __str__(self) -> str:
        return f"{self.strip or '(root)'} -> {self.add or '(root)'}"


def infer_prefixes(
    unresolved: Mapping[str, StoredTensor], resolver: KeyResolver, taken: Collection[str]
) -> dict[str, ResolvedKey]:
    """Keys that one prefix rule of the module tree explains, by key; `source` is the name to hand to the loader.

    A rule counts only if it places every unresolved key under its prefix on a free parameter of the same shape.
    CheckpointError when two rules send a key to different places.
    """
    found: dict[str, tuple[PrefixRule, ResolvedKey]] = {}
    for rule in _candidates(unresolved, resolver):
        for key, place in _apply_whole(rule, unresolved, resolver, taken).items():
            known = found.get(key)
            if known is not None and known[1].target != place.target:
                raise CheckpointError(
                    f"{key!r} could be {known[1].target!r} (by {known[0]}) or {place.target!r} (by {rule}); "
                    "rename the checkpoint's keys so that one of them is meant"
                )
            found.setdefault(key, (rule, place))
    return {key: place for key, (_, place) in found.items()}


def _apply_whole(
    rule: PrefixRule, unresolved: Mapping[str, StoredTensor], resolver: KeyResolver, taken: Collection[str]
) -> dict[str, ResolvedKey]:
    placed: dict[str, ResolvedKey] = {}
    for key, tensor in unresolved.items():
        renamed = rule.apply(key)
        if renamed is None:
            if not rule.strip or key.startswith(f"{rule.strip}."):
                return {}
            continue
        place = resolver.resolve(renamed)
        if place is None or place.target in taken or not _fits(place, tensor, resolver):
            return {}
        placed[key] = place
    return placed


def _fits(place: ResolvedKey, tensor: StoredTensor, resolver: KeyResolver) -> bool:
    return place.pattern is not None or tuple(resolver.state[place.target].shape) == tensor.shape


def _candidates(unresolved: Mapping[str, StoredTensor], resolver: KeyResolver) -> list[PrefixRule]:
    strips = _heads(unresolved) | {""}
    adds = _heads(resolver.state) | {""}
    rules = [PrefixRule(strip=strip, add=add) for strip in sorted(strips) for add in sorted(adds) if strip != add]
    return [rule for rule in rules if _explains_one(rule, unresolved, resolver)]


def _explains_one(rule: PrefixRule, unresolved: Mapping[str, StoredTensor], resolver: KeyResolver) -> bool:
    key = next((key for key in unresolved if not rule.strip or key.startswith(f"{rule.strip}.")), None)
    renamed = rule.apply(key) if key is not None else None
    return renamed is not None and resolver.resolve(renamed) is not None


def _heads(keys: Collection[str]) -> set[str]:
    heads: set[str] = set()
    for key in keys:
        parts = key.split(".")[: MAX_DEPTH + 1]
        for depth in range(1, len(parts)):
            if parts[depth - 1].isdigit():
                break
            heads.add(".".join(parts[:depth]))
    return heads
