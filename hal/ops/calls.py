"""Which backend's calls an operator makes: the one it names, or the portable one of the tensors' device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from hal.common.backends.detection import detect
from hal.common.backends.registry import backends, find_backend, platforms
from hal.common.contract.backend import Backend, required_calls
from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError
from hal.common.contract.sinks import take_sinks


@cache
def find_calls(backend: str | None, device: torch.device) -> Backend:
    """The calls of a backend on the device where the tensors live; looked up once.

    None is the portable backend of the device's platform. ValueError for a name that is not registered, BackendError where
    its calls are not written or it does not run on that device.
    """
    if backend is None:
        place = _find_device(device, None)
        return _portable_backend(place.platform)(place)
    cls = find_backend(backend)
    if cls.capabilities is None:
        raise BackendError(f"the calls of {backend} are not written yet")
    return cls(_find_device(device, cls))


@cache
def find_sinking(backend: str | None, device: torch.device, call: str) -> Callable[..., Any]:
    """One of find_calls' calls, which takes a sink whether or not its backend applies it inside."""
    calls = find_calls(backend, device)
    return take_sinks(calls, call, calls.apply_sink)


def _find_device(device: torch.device, cls: type[Backend] | None) -> Device:
    here = [found for found in detect() if found.torch_device is not None and _is_same(torch.device(found.torch_device), device)]
    if cls is not None:
        here = [found for found in here if found.platform == cls.platform]
    if here:
        return here[0]
    serving = sorted(name for name, cls in backends().items() if _serves(cls, device))
    fact = "no device of this machine is theirs" if cls is None else f"{cls.name} runs on {cls.platform} devices of this machine"
    raise BackendError(
        f"tensors are on {device} and {fact}; move them, or name a backend that serves such tensors: "
        f"{', '.join(serving) or 'none is registered'}"
    )


def _is_same(found: torch.device, device: torch.device) -> bool:
    return found.type == device.type and (found.index or 0) == (device.index or 0)


def _serves(cls: type[Backend], device: torch.device) -> bool:
    return cls.capabilities is not None and platforms()[cls.platform].torch_type == device.type


def _portable_backend(platform: str) -> type[Backend]:
    """The platform's backend with the most calls of its own; a vendor's lists in `provides` what it adds to that one."""
    written = [
        (len(required_calls(cls.capabilities)), cls)
        for cls in backends().values()
        if cls.platform == platform and cls.capabilities is not None and cls.provides is None
    ]
    if not written:
        raise BackendError(f"no backend of platform {platform} has all its calls; name one: {', '.join(sorted(backends()))}")
    return max(written, key=lambda counted: counted[0])[1]
