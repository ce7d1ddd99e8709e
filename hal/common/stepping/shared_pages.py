"""Which pages are shared and thus read-only, as a device sees them."""

from __future__ import annotations

import torch

from .pages import PagePool
from .staging import Staging


class SharedPages:
    """A pool's shared pages, bool [pages] on a device: copied there once after pages were shared or given back, without a wait.

    On the CPU they are the pool's own array.
    """

    def __init__(self, torch_device: str) -> None:
        self._device = torch_device
        self._copies: dict[int, tuple[Staging, int]] = {}

    def see(self, pool: PagePool) -> torch.Tensor | None:
        """The pool's, None where it shares none."""
        if not pool.num_shared:
            return None
        if torch.device(self._device).type == "cpu":
            return torch.from_numpy(pool.is_shared)
        staging, version = self._copies.get(id(pool), (None, -1))
        if staging is None:
            staging = Staging({"is_shared": ((pool.num_pages,), "uint8")}, self._device)
        if version != pool.version:
            staging.turn()
            staging.host["is_shared"][:] = pool.is_shared
            staging.upload()
            self._copies[id(pool)] = staging, pool.version
        return staging.device["is_shared"].bool()
