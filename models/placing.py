"""Where a module lies."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from hal.common.backends.detection import detect
from hal.common.contract.device import Device

from .errors import UnsupportedModelError


def device_of(module: PreTrainedModel) -> Device:
    """hal's device for the one that holds the module; UnsupportedModelError where hal knows none."""
    for device in detect():
        if device.torch_device is not None and torch.device(device.torch_device).type == module.device.type:
            return replace(device, torch_device=str(module.device))
    raise UnsupportedModelError(f"the module lies on {module.device}, which hal does not know")
