"""Whether everything in a module was written: memory that nobody fills is made to show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within the block torch fills memory that it hands out uninitialised: NaN, or the largest whole number."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(was_deterministic, warn_only=only_warned)


def find_poisoned(module: torch.nn.Module, drawn: Collection[str] = ()) -> list[str]:
    """Tensors that hold nothing but poison: buffers that are not saved, and of the parameters those in `drawn`."""
    saved = module.state_dict().keys()
    made = [(name, buffer) for name, buffer in module.named_buffers() if name not in saved]
    made += [(name, parameter) for name, parameter in module.named_parameters() if name in drawn]
    return [name for name, tensor in made if _is_poison(tensor)]


def _is_poison(tensor: torch.Tensor) -> bool:
    if tensor.is_meta or not tensor.numel() or tensor.dtype == torch.bool or tensor.is_complex():
        return False
    if tensor.dtype.is_floating_point:
        return bool(tensor.isnan().all())
    return bool((tensor == torch.iinfo(tensor.dtype).max).all())
