"""The devices of this machine, as each platform's probe finds them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .device import Device
from .platform import Platform
from .quiet import probe_quietly
from .registry import platforms


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
