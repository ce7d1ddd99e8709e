"""Targets, "cuda:sm_90" or "gfx942": a device of any arch of the registered platforms' tables, present or not."""

from __future__ import annotations

import difflib
import sys

from .device import Device
from .errors import InputError
from .platform import Platform
from .registry import platforms


def find_target(target: str, torch_device: str | None = None) -> Device:
    """The device that Device.from_arch() describes; InputError lists the archs."""
    platform, arch = _find_arch(target)
    row = next(row for row in platform.archs() if row.name == arch)
    present = platform.always_present
    where = _name_torch_device(torch_device) or (platform.torch_type if present else None)
    return Device(
        platform=platform.name,
        arch=arch,
        name=row.sample_part or arch,
        fp8=row.fp8,
        torch_device=where,
        present=present,
    )


def _name_torch_device(torch_device: object) -> str | None:
    torch = sys.modules.get("torch")
    if torch_device is None or isinstance(torch_device, str):
        return torch_device
    if torch is not None and isinstance(torch_device, torch.device):
        return str(torch_device)
    raise InputError(f'torch_device is {torch_device!r}; expected a name that torch knows, such as "cpu" or "cuda:0"')


def _find_arch(target: str) -> tuple[Platform, str]:
    if not isinstance(target, str):
        raise InputError(f'a target is {target!r}; expected a name such as "cuda:sm_90", "gfx942" or "cpu"')
    wanted_platform, colon, wanted_arch = target.strip().rpartition(":")
    known = [(platform, row) for platform in platforms().values() for row in platform.archs()]
    for platform, row in known:
        if wanted_platform == (platform.name if colon else "") and wanted_arch in (row.name, *row.aliases):
            return platform, row.name
    names = [f"{p.name}:{row.name}" if row.name != p.name else p.name for p, row in known]
    choices = names + [row.name for _, row in known]
    near = difflib.get_close_matches(target.strip().lower(), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"unknown target {target!r}; {hint}known targets: {', '.join(names)}")
