"""The devices of this machine, as each platform's probe finds them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hal.common.contract.device import Device
from hal.common.contract.errors import InputError
from hal.common.contract.platform import Platform
from hal.common.contract.quiet import probe_quietly

from .registry import platforms
from .targets import find_target, read_target


def detect() -> tuple[Device, ...]:
    """The devices of this machine, best platform first and the CPU always last; never raises.

    A platform whose probe fails, or has not answered after two seconds, is left out, the CPU never; probe_platforms() says why.
    """
    return tuple(device for probe in probe_platforms() for device in probe.devices)


def find_device(wanted: object = None) -> Device:
    """The device that is meant: None is this machine's best, a Device itself.

    A target is this machine's device of that arch or part ("sm_90", "H100"), else the table's. A platform's name, torch's
    name for a device or a torch.device ("cuda", "cuda:1") is one of this machine. InputError for what is neither.
    """
    if isinstance(wanted, Device):
        return wanted
    present = detect()
    if wanted is None:
        return present[0]
    target = read_target(wanted, "device")
    placed = _find_placed(target.lower(), present)
    if placed is not None:
        return placed
    try:
        named = find_target(target)
    except InputError as error:
        here = ", ".join(_name_place(device) for device in present)
        raise InputError(f"{error}; on this machine: {here}") from error
    return next((device for device in present if device.target == named.target), named)


def _find_placed(target: str, present: tuple[Device, ...]) -> Device | None:
    kind, colon, _ = target.partition(":")
    for device in present:
        torch_type, _, torch_index = (device.torch_device or "").partition(":")
        names = {f"{device.platform}:{device.index}", f"{torch_type}:{torch_index or 0}"}
        if target in names or (not colon and kind in (device.platform, torch_type)):
            return device
    return None


def _name_place(device: Device) -> str:
    return device.target if device.torch_device in (None, device.target) else f"{device.target} ({device.torch_device})"


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
