"""Devices: one of this machine, or any arch of the table as a planning target."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, replace

from .errors import InputError
from .platform import Platform
from .quiet import probe_quietly
from .registry import platforms


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that hal can plan for. torch_device: where tensors live, None where nothing runs; fp8: its e4m3 encoding."""

    platform: str
    arch: str
    index: int = 0
    name: str = ""
    memory_bytes: int | None = None
    fp8: str | None = None
    torch_device: str | None = None
    present: bool = False

    def __str__(self) -> str:
        return self.target

    @property
    def target(self) -> str:
        """The device in the one target grammar: "cuda:sm_90", "cpu"."""
        return self.platform if self.arch == self.platform else f"{self.platform}:{self.arch}"

    @classmethod
    def from_arch(cls, target: str, torch_device: str | None = None) -> Device:
        """A device of any arch of the table, present or not, from "cuda:sm_90", "sm_90" or "cpu".

        torch_device="cpu" puts tensors on the CPU while decisions stay the arch's. ValueError lists the archs.
        """
        platform, arch = _find_arch(target)
        row = next(row for row in platform.archs() if row.name == arch)
        present = platform.always_present
        where = _name_torch_device(torch_device) or (platform.torch_type if present else None)
        return cls(
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


def detect() -> tuple[Device, ...]:
    """The devices of this machine, best platform first and the CPU always last; never raises.

    A platform whose probe fails, or has not answered after two seconds, is left out, the CPU never; probe_platforms() says why.
    """
    return tuple(device for probe in probe_platforms() for device in probe.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProbe:
    """What probing one platform found: devices, and sentences on what was looked for and how it failed."""

    platform: str
    devices: tuple[Device, ...]
    findings: tuple[str, ...]


def probe_platforms() -> tuple[PlatformProbe, ...]:
    """One probe result per registered platform, those that are always present last."""
    found = tuple(platforms().values())
    present = [platform for platform in found if platform.always_present]
    # hal's own are registered first, so the CPU comes last even where a plugin's platform is always present too.
    return tuple(_probe(platform) for platform in (*[each for each in found if each not in present], *reversed(present)))


def _probe(platform: Platform) -> PlatformProbe:
    answer, failure = probe_quietly(lambda: _read_answer(platform))
    found = answer or PlatformProbe(platform=platform.name, devices=(), findings=(failure,))
    if found.devices or not platform.always_present:
        return found
    # What is always there is there whatever its probe says, of the first arch of its table.
    known = Device.from_arch(f"{platform.name}:{platform.archs()[0].name}")
    return replace(found, devices=(known,))


def _read_answer(platform: Platform) -> PlatformProbe:
    rows, findings = platform.probe()
    devices = [Device(platform=platform.name, present=True, **row) for row in rows]
    archs = {row.name for row in platform.archs()}
    strangers = [
        f"a device is of arch {device.arch!r}, which is not in the table" for device in devices if device.arch not in archs
    ]
    return PlatformProbe(
        platform=platform.name,
        devices=tuple(device for device in devices if device.arch in archs),
        findings=(*map(str, findings), *strangers),
    )
