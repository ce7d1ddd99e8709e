"""Whether a backend can be used on this machine, whatever the model."""

from __future__ import annotations

from importlib.util import find_spec

from hal.common.backends.registry import find_backend
from hal.common.backends.select import supports_combination
from hal.common.contract.device import Device
from hal.common.contract.reason import Reason
from hal.common.contract.request import Request
from hal.common.planning.plan import installed
from hal.config import read_shape

from .selfcheck import SAMPLE, check_dtype


def explain_unusable(name: str, device: Device | None) -> tuple[Reason | str, ...]:
    """What keeps a backend from this machine, () where nothing does.

    device is the machine's device of the backend's platform, None where it has none.
    """
    cls = find_backend(name)
    if cls.capabilities is None:
        return (Reason("not_built", None, "code"),)
    if device is None:
        return (f"this machine has no {cls.platform} device",)
    if find_spec("torch") is None:
        return ("torch is not installed; pip install 'hal-attention[torch]'",)
    return tuple(reason.without(name) for reason in _reasons(name, device) if reason.is_environmental)


def explain_unchecked(name: str, device: Device) -> tuple[str, ...]:
    """Why a usable backend cannot run the sample computation: it serves other kinds of layers; () where it can."""
    return tuple(str(reason) for reason in _reasons(name, device) if not reason.is_environmental)


def _reasons(name: str, device: Device) -> tuple[Reason, ...]:
    request = Request(read_shape(SAMPLE).layer(0), device, check_dtype(name), software=installed())
    return supports_combination(request)[name]
