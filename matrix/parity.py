"""Parity: which feature each platform's backends declare, taken from their capabilities and never written down.

What another platform has and one has not is a hole, and every hole has its reason: a platform's own in its file, that of
several in holes.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from hal.common.backends.registry import backends, platforms
from hal.common.contract.backend import CALLS, Backend, required_calls
from hal.common.contract.capabilities import GRAPH_LEVELS, Capabilities
from hal.common.contract.device import Device
from hal.common.contract.errors import InputError, NoBackend
from hal.common.contract.request import Request
from hal.config.sizes import INDEX_LAYOUTS, KIND_LAYOUTS

from .fleet import read_fleet, read_tables
from .support import SAMPLES

LIMITS = frozenset(
    {
        "archs",
        "rank",
        "default_block_size",
        "block_size_multiple",
        "head_dims",
        "v_head_dims",
        "max_heads",
        "topk_multiple",
        "arithmetic",
    }
)
"""Fields of Capabilities that say where a feature ends and are none themselves. Every other field is one, whoever adds it."""

FAMILIES = {"attention": "attention", "mla": "MLA", "sparse_mla": "sparse MLA", "compressed": "compressed attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The table. has: by feature the platforms that have it. holes: (feature, platform) with its reason, "" where none is given.

    A platform has what any of its backends declares on some arch; which of them serves a layer there is the support table's.
    stale: reasons for holes that there are not.
    """

    platforms: tuple[str, ...]
    has: Mapping[str, Set[str]]
    holes: Mapping[tuple[str, str], str]
    stale: tuple[tuple[str, str], ...]

    @property
    def unexplained(self) -> tuple[tuple[str, str], ...]:
        """Holes without a reason."""
        return tuple(hole for hole, reason in self.holes.items() if not reason)


def compute_parity() -> Parity:
    """The features of the platforms that have a file here, and the holes."""
    names = tuple(proof.platform for proof in read_fleet() if proof.platform in platforms())
    has: dict[str, set[str]] = {feature: set() for feature in _list_vocabulary()}
    for cls in backends().values():
        if cls.platform in names and cls.capabilities is not None:
            for feature in list_features(cls):
                has.setdefault(feature, set()).add(cls.platform)
    reasons = read_reasons()
    found = [(feature, name) for feature in sorted(has) for name in names if name not in has[feature]]
    return Parity(
        platforms=names,
        has={feature: frozenset(has[feature]) for feature in sorted(has)},
        holes={hole: reasons.get(hole, "") for hole in found},
        stale=tuple(sorted(reasons.keys() - found)),
    )


def _list_vocabulary() -> Iterator[str]:
    """What could be declared and is shown even where nobody does."""
    yield from (f"call {call}" for call in CALLS)
    yield from (f"family {words}" for words in FAMILIES.values())
    yield from (f"graphs {level}" for level in GRAPH_LEVELS[1:])
    yield from (f"index layouts {name}" for name in INDEX_LAYOUTS)
    for family in FAMILIES:
        names = KIND_LAYOUTS["mla" if family == "sparse_mla" else family]
        yield from (f"kv layouts {family}: {name}" for name in names)
    yield from (field.name.replace("_", " ") for field in fields(Capabilities) if field.type in ("bool", bool))


def list_features(cls: type[Backend]) -> Iterator[str]:
    """What a backend declares, as names of features: its calls, and whatever its capabilities say that is no limit."""
    declared = cls.capabilities
    if declared is None:
        return
    yield from (f"call {call}" for call in required_calls(declared))
    for field in fields(declared):
        if field.name not in LIMITS:
            yield from _read_field(field.name, getattr(declared, field.name), declared)
    yield from (f"warm-up {kernel}" for kernel in _list_kernels(cls))


def _read_field(name: str, value: object, declared: Capabilities) -> Iterator[str]:
    words = name.replace("_", " ")
    if name == "graphs":
        yield from (f"graphs {level}" for level in GRAPH_LEVELS[1 : GRAPH_LEVELS.index(declared.graphs) + 1])
    elif name == "families":
        yield from (f"family {FAMILIES.get(family, family)}" for family in declared.families)
    elif isinstance(value, bool):
        yield from [words] * value
    elif isinstance(value, int):
        # A count of what can be had; the least that a field may hold is nothing of it.
        yield from [words] * (value > (1 if name == "max_index_pool" else 0))
    elif isinstance(value, Mapping):
        yield from (f"{words} {key}: {item}" for key, items in value.items() for item in items)
    elif isinstance(value, (tuple, Set)):
        yield from (f"{words} {item}" for item in value)
    else:
        raise TypeError(f"Capabilities.{name} is {value!r}; parity reads flags, counts, names and tables of names")


def _list_kernels(cls: type[Backend]) -> set[str]:
    """The kernels that warm-up compiles for a layer of each kind, the names of their launches' keys."""
    found: set[str] = set()
    archs = platforms()[cls.platform].archs()
    for layer in SAMPLES.values():
        request = Request(layer, Device.from_arch(f"{cls.platform}:{archs[0].name}"), "bfloat16")
        try:
            found |= {getattr(key, "kernel", str(key)) for key in cls.list_launches(request)}
        except NoBackend:
            continue
    return found


@cache
def read_reasons() -> Mapping[tuple[str, str], str]:
    """(feature, platform) -> why not. InputError: no such entry, or a hole with two reasons."""
    found = dict(parse_reasons(files(__package__).joinpath("holes.jsonl").read_text(encoding="utf-8")))
    for platform, data in read_tables().items():
        for hole, reason in _read_own(platform, data.get("hole", [])):
            if hole in found:
                raise InputError(f"matrix/{platform}.toml: {hole[0]} on {platform} has two reasons")
            found[hole] = reason
    return found


def _read_own(platform: str, entries: object) -> Iterator[tuple[tuple[str, str], str]]:
    """The holes of a platform's own file, each with its reason."""
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or entry.keys() != {"features", "reason"} or not _is_reason(**entry):
            raise InputError(f"matrix/{platform}.toml: hole {entry!r} is no entry; expected features and a reason in words")
        yield from (((feature, platform), entry["reason"].strip()) for feature in entry["features"])


def _is_reason(features: object, reason: object) -> bool:
    named = isinstance(features, list) and bool(features) and all(isinstance(feature, str) for feature in features)
    return named and isinstance(reason, str) and bool(reason.strip())


def parse_reasons(text: str) -> Mapping[tuple[str, str], str]:
    """The reasons of such a file, a line for some features and platforms. InputError: no such line, or a hole with two."""
    found: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            holes = [(str(feature), str(platform)) for feature in entry["features"] for platform in entry["platforms"]]
            reason = entry["reason"].strip()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"holes.jsonl: {line!r} is no entry ({error}); expected features, platforms and reason") from error
        if not reason or not holes or entry.keys() != {"features", "platforms", "reason"}:
            raise InputError(f"holes.jsonl: {line!r} is no entry; expected features, platforms and a reason in words")
        for hole in holes:
            if hole in found:
                raise InputError(f"holes.jsonl: {hole[0]} on {hole[1]} has two reasons")
            found[hole] = reason
    return found
