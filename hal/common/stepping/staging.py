"""Named arrays in one block of host memory and one of device memory, copied at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hal.common.planning.step_arrays import place_regions

# Views kept at once; steps of a running engine ask for the same few hundred.
_MAX_VIEWS = 8192
# Host memory is filled for one step while the upload of the step before may still be waiting for the device.
_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One block of host memory, its arrays, and the event that tells when its last upload has read it."""

    memory: torch.Tensor
    arrays: dict[str, npt.NDArray[Any]]
    uploaded: Any


class Staging:
    """Persistent arrays: .host[name] is a numpy view to fill, .device[name] the tensor that has it after upload().

    On the CPU both are the same memory and nothing is copied. Arrays on the device keep their addresses for life. An upload
    copies all regions, whatever a step used of them, when the device gets there: turn() goes on with host arrays that no
    upload still has to read.
    """

    def __init__(self, regions: Mapping[str, tuple[tuple[int, ...], str]], device: str) -> None:
        offsets, end = place_regions(regions)
        on_cpu = torch.device(device).type == "cpu"
        blocks = [torch.zeros(end, dtype=torch.uint8, pin_memory=not on_cpu) for _ in range(1 if on_cpu else _TURNS)]
        self._is_copied = not on_cpu
        self._device_memory = blocks[0].to(device)
        self._turns = deque(
            _Turn(memory=block, arrays={}, uploaded=torch.Event(torch.device(device).type) if self._is_copied else None)
            for block in blocks
        )
        self.device: dict[str, torch.Tensor] = {}
        for name, (shape, dtype) in regions.items():
            span = slice(offsets[name], offsets[name] + prod(shape) * np.dtype(dtype).itemsize)
            for turn in self._turns:
                turn.arrays[name] = turn.memory.numpy()[span].view(dtype).reshape(shape)
            self.device[name] = self._device_memory[span].view(getattr(torch, dtype)).view(shape)
        self.host = self._turns[0].arrays
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

    def turn(self) -> None:
        """Go on with other host arrays, what they hold being two steps old; waits only where the device is that far behind."""
        if self._is_copied:
            self._turns.rotate()
            self._turns[0].uploaded.synchronize()
            self.host = self._turns[0].arrays

    def upload(self) -> None:
        """Make the device see what the host arrays hold: at most one copy, and no wait for it."""
        if self._is_copied:
            self._device_memory.copy_(self._turns[0].memory, non_blocking=True)
            self._turns[0].uploaded.record(torch.accelerator.current_stream(self._device_memory.device))
