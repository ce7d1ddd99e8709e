"""Checkpoints whose wrapper has another name than the built module's: the reading that explains most of them, if there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .checkpoint_header import StoredTensor
from .errors import CheckpointError
from .keys import NUMBER, KeyResolver, ResolvedKey

MAX_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRule:
    """Keys that start with `strip` are read as if they started with `add` ("" is the root)."""

    strip: str
    add: str

    def covers(self, key: str) -> bool:
        """Whether the key lies under what is stripped."""
        return not self.strip or key.startswith(f"{self.strip}.")

    def apply(self, key: str, takes_leaves: bool = False) -> str | None:
        """The renamed key, None where the rule does not apply or would rename a list, or a leaf, instead of a wrapper."""
        rest = key if not self.strip else key.removeprefix(f"{self.strip}.")
        first, _, inner = rest.partition(".")
        if (self.strip and rest == key) or not (inner or takes_leaves) or first.isdigit():
            return None
        return f"{self.add}.{rest}" if self.add else rest

    def __str__(self) -> str:
        return f"{self.strip or '(root)'} -> {self.add or '(root)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one rule makes of the keys that are left: where each goes that it places."""

    rule: PrefixRule
    placed: Mapping[str, ResolvedKey]

    @property
    def targets(self) -> frozenset[str]:
        """The parameters that it fills."""
        return frozenset(target for place in self.placed.values() for target in place.targets)


def infer_prefixes(unresolved: Mapping[str, StoredTensor], resolver: KeyResolver, taken: Collection[str]) -> list[Reading]:
    """The readings of the module tree that explain keys of another wrapper, the largest first; `source` of a placed key is
    the name to hand to the loader.

    A rule counts if it places most of what lies under its prefix on free parameters of the same shape; of several, the one
    that places most keys. CheckpointError where two that place equally many send a key, or fill a parameter, differently.
    """
    left, filled = dict(unresolved), set(taken)
    readings: list[Reading] = []
    while left:
        best = _choose(left, resolver, filled)
        if best is None:
            break
        readings.append(best)
        left = {key: tensor for key, tensor in left.items() if key not in best.placed}
        filled |= best.targets
    return readings


def find_copies(left: Mapping[str, StoredTensor], resolver: KeyResolver) -> frozenset[str]:
    """Of keys that no reading places, those that one would place if their parameters were free: a second set of weights."""
    readings = (_read(rule, left, resolver, frozenset()) for rule, _ in _candidates(left, resolver, resolver.state))
    return frozenset(key for reading in readings if reading is not None for key in reading.placed)


def extend(
    readings: Sequence[Reading], spare: Mapping[str, StoredTensor], resolver: KeyResolver, taken: Collection[str]
) -> dict[str, ResolvedKey]:
    """Of keys that no reading was made from, those that the readings place on parameters that nothing else fills.

    What looks like an old buffer or a part that is not built is none where the model, read under another wrapper, has it. A
    parameter that lies in the wrapper itself says nothing of the wrapper's name, and follows those that do.
    """
    filled = {*taken, *(target for reading in readings for target in reading.targets)}
    found: dict[str, ResolvedKey] = {}
    for reading in readings:
        left = {key: tensor for key, tensor in spare.items() if key not in found}
        placed = _place(reading.rule, left, resolver, filled, takes_leaves=True)
        found |= placed
        filled |= {target for place in placed.values() for target in place.targets}
    return found


def _choose(left: Mapping[str, StoredTensor], resolver: KeyResolver, filled: AbstractSet[str]) -> Reading | None:
    free = [name for name in resolver.state if name not in filled]
    if not free:
        return None
    found: list[Reading] = []
    for rule, most in _candidates(left, resolver, free):
        # Scores fall, and none is less than what its rule places.
        if found and most < max(len(reading.placed) for reading in found):
            break
        reading = _read(rule, left, resolver, filled)
        if reading is not None:
            found.append(reading)
    if not found:
        return None
    best, *others = sorted(found, key=lambda reading: -len(reading.placed))
    for other in others:
        if len(other.placed) == len(best.placed):
            _check_agree(best, other)
    return best


def _check_agree(first: Reading, second: Reading) -> None:
    """Raise CheckpointError where two readings that fit equally well are not the same one said in two ways."""
    for key, place in first.placed.items():
        other = second.placed.get(key)
        if other is not None and other.target != place.target:
            raise CheckpointError(
                f"{key!r} could be {place.target!r} (by {first.rule}) or {other.target!r} (by {second.rule}); "
                "rename the checkpoint's keys so that one of them is meant"
            )
    by_target = {place.target: key for key, place in second.placed.items()}
    for key, place in first.placed.items():
        rival = by_target.get(place.target)
        if rival is not None and rival != key and place.pattern is None:
            raise CheckpointError(
                f"{place.target!r} could be {key!r} (by {first.rule}) or {rival!r} (by {second.rule}); "
                "keep the one set of weights that is meant"
            )


def _read(rule: PrefixRule, left: Mapping[str, StoredTensor], resolver: KeyResolver, filled: AbstractSet[str]) -> Reading | None:
    covered = {key: tensor for key, tensor in left.items() if rule.covers(key)}
    placed = _place(rule, covered, resolver, filled)
    return Reading(rule=rule, placed=placed) if placed and 2 * len(placed) > len(covered) else None


def _place(
    rule: PrefixRule,
    keys: Mapping[str, StoredTensor],
    resolver: KeyResolver,
    filled: AbstractSet[str],
    takes_leaves: bool = False,
) -> dict[str, ResolvedKey]:
    placed: dict[str, ResolvedKey] = {}
    for key, tensor in keys.items():
        renamed = rule.apply(key, takes_leaves)
        place = None if renamed is None else resolver.resolve(renamed)
        if place is not None and filled.isdisjoint(place.targets) and _fits(place, tensor, resolver):
            placed[key] = place
    return placed


def _fits(place: ResolvedKey, tensor: StoredTensor, resolver: KeyResolver) -> bool:
    return place.pattern is not None or tuple(resolver.state[place.target].shape) == tensor.shape


def _candidates(left: Mapping[str, StoredTensor], resolver: KeyResolver, free: Collection[str]) -> list[tuple[PrefixRule, int]]:
    """Rules and how many keys they would place by their names alone, most first; names are compared without their numbers."""
    examples = {NUMBER.sub("0", key): key for key in left}
    kinds = Counter(NUMBER.sub("0", key) for key in left)
    wanted = {NUMBER.sub("0", name) for name in free}
    scores: dict[PrefixRule, int] = {}
    for strip in _heads(kinds) | {""}:
        covered = [kind for kind in kinds if not strip or kind.startswith(f"{strip}.")]
        for add in (_heads(wanted) | {""}) - {strip}:
            rule = PrefixRule(strip=strip, add=add)
            score = sum(kinds[kind] for kind in covered if _may_fit(rule.apply(examples[kind]), wanted, resolver))
            if 2 * score > sum(kinds[kind] for kind in covered):
                scores[rule] = score
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0].strip, pair[0].add))


def _may_fit(renamed: str | None, wanted: Collection[str], resolver: KeyResolver) -> bool:
    if renamed is None or NUMBER.sub("0", renamed) in wanted:
        return renamed is not None
    place = resolver.resolve(renamed)
    return place is not None and NUMBER.sub("0", place.target) in wanted


def _heads(keys: Iterable[str]) -> set[str]:
    heads: set[str] = set()
    for key in keys:
        parts = key.split(".")[: MAX_DEPTH + 1]
        for depth in range(1, len(parts)):
            if parts[depth - 1].isdigit():
                break
            heads.add(".".join(parts[:depth]))
    return heads
