"""Linear layers that divide in pairs: outputs of the first ones, inputs of the last, with nothing but elementwise work between.

Read off the module's own forward: the last layer's inputs are parted evenly, and each part must depend on other outputs of
the first layers than every other part does, whatever order a fused gate has them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from hal.common.contract.parallel import Parallel

from .hollow import Emitter, HollowRun, read_linear
from .slices import block
from .supports import Supports, depends_on, find_supports


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One module's layers, by their names in it: the first ones, the last, and what this rank keeps of the first ones."""

    last: str
    width: int
    rows: Mapping[str, tuple[int, ...]]
    columns: tuple[int, ...]


Likeness = tuple[object, ...]


def liken(module: nn.Module) -> Likeness:
    """Modules of one class with linear layers of the same names and sizes divide alike."""
    return (
        type(module),
        *((name, sizes) for name, child in module.named_children() if (sizes := read_linear(child)) is not None),
    )


def find_last(run: HollowRun, name: str) -> tuple[str, list[str]] | None:
    """Of a module's own linear layers the one that reads the others, and those it reads; None where that is not one."""
    emitters = _own_emitters(run, name)
    leaves = {key: emitter.leaf for key, emitter in emitters.items() if emitter.leaf is not None}
    readers = {}
    for key, emitter in emitters.items():
        if emitter.received is not None and (found := find_supports(emitter.received, leaves)):
            readers[key] = sorted(found)
    if len(readers) != 1:
        return None
    last, firsts = next(iter(readers.items()))
    return None if last in firsts or _leaks(run, name, [leaves[first] for first in firsts]) else (last, firsts)


def divide_pair(run: HollowRun, name: str, last: str, firsts: list[str], parallel: Parallel) -> Pair | None:
    """What the rank keeps; None where a part of the last layer's inputs depends on more than its part of the outputs."""
    emitters = _own_emitters(run, name)
    received, width = emitters[last].received, emitters[last].sizes.inputs
    leaves = {first: leaf for first in firsts if (leaf := emitters[first].leaf) is not None}
    if received is None:
        return None
    parts = [block(width, rank, parallel.tp) for rank in range(parallel.tp)]
    supports = [find_supports(received[..., part.start : part.stop], leaves) for part in parts]
    if not all(_is_divided(first, supports) for first in firsts):
        return None
    own = supports[parallel.tp_rank]
    rows = {first: tuple(own[first].nonzero().flatten().tolist()) for first in firsts}
    return Pair(last=last, width=width, rows=rows, columns=tuple(parts[parallel.tp_rank]))


def alike_modules(module: PreTrainedModel, likeness: Likeness) -> Iterator[str]:
    """The names of every module that divides like this, those included that no token reached (experts, one by one)."""
    for name, child in module.named_modules():
        if type(child) is likeness[0] and liken(child) == likeness:
            yield name


def _own_emitters(run: HollowRun, name: str) -> dict[str, Emitter]:
    return {key: emitter for key, emitter in run.under(name).items() if "." not in key and emitter.calls == 1}


def _is_divided(first: str, supports: list[Supports]) -> bool:
    """Whether every output of a layer belongs to exactly one part, and each part has as many."""
    if any(first not in found for found in supports):
        return False
    rows = torch.stack([found[first] for found in supports]).int()
    return bool((rows.sum(0) == 1).all()) and len(set(rows.sum(1).tolist())) == 1


def _leaks(run: HollowRun, name: str, leaves: list[torch.Tensor]) -> bool:
    output = run.called[name].output
    first = output[0] if isinstance(output, tuple) else output
    return not isinstance(first, torch.Tensor) or any(depends_on(first, leaf) is not None for leaf in leaves)
