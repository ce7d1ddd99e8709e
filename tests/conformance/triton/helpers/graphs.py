"""A captured graph without a device: what a call launches and asks of torch, done again on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from hal.common.triton.launch import Launch, Launcher

_aten = torch.ops.aten
# What waits for the device, or has results whose sizes only the device knows, or takes values from the host.
WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.lift_fresh.default,
}


class Graph(TorchDispatchMode):
    """Records what runs inside a `with`; replay() does it again as a device would: no code of the host, the same tensors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.done: list[Launch | tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        self._run = run = Launcher.run

        def run_and_record(launcher: Launcher, launch: Launch) -> None:
            with _disable_current_modes():
                run(launcher, launch)
            self.done.append(launch)

        monkeypatch.setattr(Launcher, "run", run_and_record)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [each for each in tree_leaves(args[1:]) if isinstance(each, torch.Tensor) and each.dtype is torch.bool]
        if func in WAITING or (func in (_aten.index.Tensor, _aten.index_put_.default) and masks):
            raise AssertionError(f"{func} waits for the device, which a captured call cannot")
        result = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, result))
        return result

    def launches(self) -> list[Launch]:
        """The kernels, in their order."""
        return [each for each in self.done if isinstance(each, Launch)]

    def replay(self, launcher: Launcher) -> None:
        """Run everything once more, results in the tensors of the first time."""
        for each in self.done:
            if isinstance(each, Launch):
                self._run(launcher, each)
                continue
            func, args, kwargs, before = each
            for old, new in zip(tree_leaves(before), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
