"""Tensors that a class lets files leave out, and gives a value of its own that does not hang on chance."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable

import torch
from transformers import PreTrainedModel

from .slices import Slices

MOST_ELEMENTS = 1 << 22
"""Larger tensors are weights: no class computes one, and drawing it twice to see so takes long."""


def find_unstored(module: PreTrainedModel, missing: Iterable[str], shares: Collection[Slices] = ()) -> dict[str, str]:
    """Of the missing tensors those that may be missing, with what says so; the module, on the meta device, is left alone.

    The class declares them (transformers' _keys_to_ignore_on_load_missing), and its _init_weights fills them alike every
    time; what it draws at random stays missing. Of tensors that the ranks divide, only those that are one number everywhere.
    """
    patterns = [re.compile(pattern) for pattern in sorted(module._keys_to_ignore_on_load_missing or ())]
    found = {}
    for name in missing:
        pattern = next((each.pattern for each in patterns if each.search(name)), None)
        value = None if pattern is None else _compute(module, name)
        if value is None:
            continue
        is_even = bool((value == value.flatten()[0]).all())
        if is_even or not any(name in share.parts for share in shares):
            what = f"sets it to {value.flatten()[0].item():g}" if is_even else "computes it"
            found[name] = f"{type(module).__name__} lets it be missing ({pattern}) and {what}"
    return found


def _compute(module: PreTrainedModel, name: str) -> torch.Tensor | None:
    """The value that the class gives a tensor, None for none or another each time."""
    wanted = module.get_parameter_or_buffer(name)
    if not 0 < wanted.numel() <= MOST_ELEMENTS:
        return None
    values = []
    with torch.random.fork_rng(devices=[]):
        for attempt in (0, 1):
            torch.manual_seed(attempt)
            start = torch.full(wanted.shape, attempt, dtype=wanted.dtype)
            try:
                values.append(_initialise(module, name, start))
            except Exception:  # noqa: BLE001 - a class that cannot fill a tensor by itself computes none
                return None
    return values[0] if torch.equal(*values) else None


def _initialise(module: PreTrainedModel, name: str, start: torch.Tensor) -> torch.Tensor:
    path, _, own = name.rpartition(".")
    child = copy.deepcopy(module.get_submodule(path))
    for tensor in (*child.parameters(), *child.buffers()):
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    if own in child._parameters:
        child._parameters[own] = torch.nn.Parameter(start, requires_grad=start.is_floating_point())
    else:
        child._buffers[own] = start
    owners = [each for prefix, each in module.named_modules() if isinstance(each, PreTrainedModel) and _holds(prefix, path)]
    owners[-1]._init_weights(child)
    filled: torch.Tensor = getattr(child, own)
    return filled.detach()


def _holds(prefix: str, path: str) -> bool:
    return not prefix or path == prefix or path.startswith(f"{prefix}.")
