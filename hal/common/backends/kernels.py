"""A backend's calls, bound to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.common.contract.backend import Backend
from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError, InputError
from hal.common.contract.extras import naming_extra

from .detection import detect, find_device
from .registry import find_backend

if TYPE_CHECKING:
    import torch


def kernels(name: str, device: Device | torch.device | None = None) -> Backend:
    """The calls of a backend by name, on a device (this machine's first of its platform by default).

    ValueError for an unknown name or what is no device; BackendError where its calls are not written or no such
    device is here.
    """
    cls = find_backend(name)
    if cls.capabilities is None:
        raise BackendError(f"the calls of {name} are not written yet")
    if device is None:
        opened = next((found for found in detect() if found.platform == cls.platform), None)
    elif isinstance(device, str):
        raise InputError(f"device is {device!r}; expected a hal.Device, as hal.detect() and Device.from_arch() give, or None")
    else:
        opened = find_device(device)
    if opened is None or opened.torch_device is None:
        raise BackendError(
            f"{name} runs on {cls.platform} devices and none is here; pass Device.from_arch(..., torch_device='cpu') to run "
            "it on CPU tensors"
        )
    if opened.platform != cls.platform:
        raise BackendError(f"{name} runs on {cls.platform} devices, not on {opened.target}")
    with naming_extra(name):
        return cls(opened)
