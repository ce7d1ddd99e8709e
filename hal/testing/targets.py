"""What can be run on this machine: every backend that is written, on every device it has here."""

from __future__ import annotations

from dataclasses import dataclass

from hal.common.backends.detection import probe_platforms
from hal.common.backends.registry import backends, find_backend, platforms
from hal.common.contract.backend import Backend
from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A backend on a device of this machine."""

    backend: type[Backend]
    device: Device

    @property
    def id(self) -> str:
        """The backend's name, and the arch where its platform has several."""
        arch = "" if self.device.arch == self.device.platform else f"@{self.device.arch}"
        return f"{self.backend.name}{arch}"

    @property
    def needs_hardware(self) -> bool:
        """Whether the device is an accelerator."""
        return not platforms()[self.device.platform].always_present


def find_targets(backend: str | None = None) -> tuple[Target, ...]:
    """Every written backend on every device here, or one backend's.

    ValueError for a name that is not registered, BackendError for one asked for that cannot run here.
    """
    classes = list(backends().values()) if backend is None else [find_backend(backend)]
    devices = [device for probe in probe_platforms() for device in probe.devices]
    targets = tuple(
        Target(backend=cls, device=device)
        for cls in classes
        for device in devices
        if cls.capabilities is not None and device.platform == cls.platform and runs_on(cls, device)
    )
    if backend is not None and not targets:
        raise BackendError(f"the backend {backend} was asked for and {_why_absent(classes[0], devices)}")
    return targets


def find_device(platform: str) -> Device:
    """The first device of a platform on this machine; ValueError or BackendError where there is none, with what was found."""
    if platform not in platforms():
        raise ValueError(f"unknown platform {platform!r}; registered: {', '.join(sorted(platforms()))}")
    (probe,) = [probe for probe in probe_platforms() if probe.platform == platform]
    usable = [device for device in probe.devices if device.torch_device is not None]
    if not usable:
        found = "; ".join(probe.findings) or "nothing was found"
        raise BackendError(f"a {platform} device was asked for and none can be used here: {found}")
    return usable[0]


def runs_on(backend: type[Backend], device: Device) -> bool:
    """Whether tensors can live on the device and the backend lists its arch."""
    archs = backend.capabilities.archs if backend.capabilities is not None else frozenset()
    return device.torch_device is not None and (not archs or device.arch in archs)


def _why_absent(backend: type[Backend], devices: list[Device]) -> str:
    if backend.capabilities is None:
        return "its calls are not written yet"
    here = ", ".join(device.target for device in devices) or "none"
    return f"no device here can run it; its platform is {backend.platform}, the devices here are {here}"
