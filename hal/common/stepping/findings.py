"""Counting what only the device can see wrong, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BatchError


class Finding:
    """How often something was found on the device. int() of it waits for the device; HAL_DEBUG=1 makes each one an error."""

    def __init__(self, torch_device: str) -> None:
        self._total = torch.zeros((), dtype=torch.int64, device=torch_device)

    def __int__(self) -> int:
        return int(self._total)

    def add(self, is_wrong: torch.Tensor, describe: Callable[[tuple[int, ...]], str]) -> None:
        """Count the True elements; BatchError under HAL_DEBUG=1, described by the index of the first one."""
        self._total += is_wrong.sum()
        if read_variable("HAL_DEBUG") == "1":
            wrong = is_wrong.nonzero()
            if wrong.shape[0]:
                raise BatchError(describe(tuple(wrong[0].tolist())))
