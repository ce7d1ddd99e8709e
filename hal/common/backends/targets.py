"""Targets, "cuda:sm_90", "gfx942" or "H100": a device of any arch of the registered platforms' tables, present or not."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

from hal.common.contract.arch import Arch, match_parts, split_words
from hal.common.contract.device import Device
from hal.common.contract.errors import InputError
from hal.common.contract.platform import Platform

from .registry import broken_plugins, platforms

Row = tuple[Platform, Arch]


def find_target(target: object, torch_device: str | None = None) -> Device:
    """The device that Device.from_arch() describes; InputError lists the archs."""
    platform, row = _find_row(read_target(target))
    present = platform.always_present
    where = _name_torch_device(torch_device) or (platform.torch_type if present else None)
    return Device(
        platform=platform.name,
        arch=row.name,
        name=row.sample_part or row.name,
        fp8=row.fp8,
        torch_device=where,
        present=present,
    )


def read_target(target: object, what: str = "a target") -> str:
    """The text of a target, a torch.device's being its name; InputError, by what it is called, for anything else."""
    if isinstance(target, str):
        return target.strip()
    if _is_torch_device(target):
        return str(target)
    raise InputError(
        f'{what} is {target!r}; expected a hal.Device, a torch.device or a name such as "cuda:sm_90", "gfx942" or "cpu"'
    )


def _is_torch_device(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.device)


def _name_torch_device(torch_device: object) -> str | None:
    if torch_device is None or isinstance(torch_device, str):
        return torch_device
    if _is_torch_device(torch_device):
        return str(torch_device)
    raise InputError(f'torch_device is {torch_device!r}; expected a name that torch knows, such as "cpu" or "cuda:0"')


def _find_row(target: str) -> Row:
    """The arch of that name, or else the one arch whose parts are called so, on the platform that is named, if one is."""
    prefix, colon, name = target.lower().rpartition(":")
    rows = [(platform, row) for platform in platforms().values() for row in platform.archs()]
    asked = [(platform, row) for platform, row in rows if not colon or platform.name == prefix]
    for platform, row in asked:
        if name in (row.name, *row.aliases) and (colon or platform.name != row.name or name == platform.name):
            return platform, row
    matched = match_parts(name, [row for _, row in asked])
    found = [(platform, row) for platform, row in asked if row in matched]
    if len(found) == 1:
        return found[0]
    raise InputError(_explain_unknown(target, found, rows))


def _join(name: str) -> str:
    return "".join(split_words(name))


def _explain_unknown(target: str, found: Iterable[Row], rows: list[Row]) -> str:
    names = ", ".join(_write(row) for row in rows)
    meant = [f"{_write(row)!r}" for row in found] or _suggest(target.lower(), rows)
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    kind = target.lower().partition(":")[0]
    places = {word for platform in platforms().values() for word in (platform.name, platform.torch_type)}
    if kind in places and re.fullmatch(r"[a-z]*(:\d*)?", target.lower()):
        hint = "it names a device of this machine, and none of that kind is here; to plan for another name its arch or a part; "
        own = [row for row in rows if row[0].name == kind]
        names = ", ".join(f"{_write(row)} ({row[1].sample_part})" if row[1].sample_part else _write(row) for row in own) or names
    return f"unknown target {target!r}; {hint}known targets: {names}{_tell_broken()}"


def _tell_broken() -> str:
    """What a plugin that did not load would have known is unknown too."""
    return "".join(f"; {plugin} does not load: {failure}" for plugin, failure in broken_plugins().items())


def _write(row: Row) -> str:
    platform, arch = row
    return platform.name if arch.name == platform.name else f"{platform.name}:{arch.name}"


def _suggest(target: str, rows: list[Row]) -> list[str]:
    """At most three targets that may have been meant, parts with their arch."""
    _, colon, name = target.rpartition(":")
    parts = {_join(part): (part, row) for row in rows for part in row[1].parts}
    near = [key for key in parts if _is_near_part(_join(name), key)]
    ranked = difflib.get_close_matches(_join(name), near, n=3, cutoff=0)
    if ranked:
        archs = {_write(parts[key][1]): parts[key][0] for key in reversed(ranked)}
        return [f"{arch!r} ({part})" for arch, part in reversed(archs.items())]
    letters = "".join(filter(str.isalpha, name))
    written = {name: _write(row) for row in rows for name in (row[1].name, *row[1].aliases)}
    alike = [arch for arch in written if _likeness(letters, "".join(filter(str.isalpha, arch))) >= 0.6]
    return [repr(written[arch] if colon else arch) for arch in difflib.get_close_matches(name, alike, n=1, cutoff=0.5)]


def _is_near_part(name: str, part: str) -> bool:
    """Whether one is a slip or a variant of the other: a model's numbers make it another model, so they must be there."""
    numbers = set(re.findall(r"\d+", part))
    if not numbers <= set(re.findall(r"\d+", name)):
        return False
    is_within = (part in name and len(part) >= 3) or (name in part and len(name) >= 4)
    return is_within or _likeness(name, part) >= 0.8


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
