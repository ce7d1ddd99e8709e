"""Named arrays in one block of host memory and one of device memory, copied at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 64
"""Bytes that every array's address is a multiple of."""

# Views kept at once; steps of a running engine ask for the same few hundred.
_MAX_VIEWS = 8192


class Staging:
    """Persistent arrays: .host[name] is a numpy view to fill, .device[name] the tensor that has it after upload().

    On the CPU both are the same memory and nothing is copied. Arrays keep their addresses for life. An upload copies all
    regions, whatever a step used of them.
    """

    def __init__(self, regions: Mapping[str, tuple[tuple[int, ...], str]], device: str) -> None:
        offsets, end = {}, 0
        for name, (shape, dtype) in regions.items():
            offsets[name] = end
            end += -(-prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        on_cpu = torch.device(device).type == "cpu"
        memory = torch.zeros(max(end, 1), dtype=torch.uint8, pin_memory=not on_cpu)
        self._host_memory = memory
        self._device_memory = memory if on_cpu else memory.to(device)
        self.host: dict[str, npt.NDArray[Any]] = {}
        self.device: dict[str, torch.Tensor] = {}
        for name, (shape, dtype) in regions.items():
            span = slice(offsets[name], offsets[name] + prod(shape) * np.dtype(dtype).itemsize)
            self.host[name] = memory.numpy()[span].view(dtype).reshape(shape)
            self.device[name] = self._device_memory[span].view(getattr(torch, dtype)).view(shape)
        self._views: dict[tuple[str, int, int, int | None], torch.Tensor] = {}

    def see(self, name: str, start: int, stop: int, row: int | None = None) -> torch.Tensor:
        """.device[name][start:stop], or [row, start:stop]: kept, since making a view costs more than finding it."""
        key = (name, start, stop, row)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            whole = self.device[name] if row is None else self.device[name][row]
            view = self._views[key] = whole[start:stop]
        return view

    def upload(self) -> None:
        """Make the device see what the host arrays hold: at most one copy, and no wait for it."""
        if self._device_memory is not self._host_memory:
            self._device_memory.copy_(self._host_memory, non_blocking=True)
