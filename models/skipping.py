"""Checkpoint tensors that are known not to be parameters: old mask buffers and buffers that the module recomputes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from .checkpoint_header import StoredTensor

MASKS = frozenset({"bias", "causal_mask"})
"""Last components under which old transformers releases saved an attention's causal mask."""

FILL_VALUES = frozenset({"masked_bias"})
"""Last components under which they saved the number that stood for a hidden key."""


@dataclass(slots=True)
class BufferRules:
    """What a module's own buffers and attention modules say about tensors that resolve to no parameter."""

    module: PreTrainedModel
    attentions: frozenset[tuple[str, ...]] = field(init=False)
    recomputed: dict[str, list[tuple[str, tuple[int, ...]]]] = field(init=False)

    def __post_init__(self) -> None:
        self.attentions = frozenset(_tail(name.split(".")) for name in _attention_paths(self.module))
        self.recomputed = {}
        for name, shape in _recomputed_buffers(self.module):
            self.recomputed.setdefault(name.rpartition(".")[2], []).append((name, shape))

    def explain(self, tensor: StoredTensor) -> str | None:
        """Why a tensor that resolves to no parameter may be left out, None if it may not.

        Exact name, place and shape only: a mask or its fill value directly in an attention module that the model has, or
        the name and shape of a buffer that the module recomputes.
        """
        *parents, last = tensor.name.split(".")
        if _is_old_mask(last, tensor.shape) and _tail(parents) in self.attentions:
            return f"old mask buffer {list(tensor.shape)}"
        for name, shape in self.recomputed.get(last, ()):
            if shape == tensor.shape:
                return f"buffer that the module computes itself ({name})"
        return None


def _is_old_mask(last: str, shape: tuple[int, ...]) -> bool:
    if last in FILL_VALUES:
        return shape in ((), (1,))
    is_square = len(shape) in (2, 3, 4) and shape[-1] == shape[-2] > 1 and all(size == 1 for size in shape[:-2])
    return last in MASKS and is_square


def _attention_paths(module: PreTrainedModel) -> Iterator[str]:
    for name, child in module.named_modules():
        if "attention" in type(child).__name__.lower() and any(True for _ in child.parameters()):
            yield name


def _tail(path: list[str]) -> tuple[str, ...]:
    """A path from its last list index on: what is left of it whatever the model is wrapped in."""
    for place in range(len(path) - 1, -1, -1):
        if path[place].isdigit():
            return tuple(path[place:])
    return tuple(path)


def _recomputed_buffers(module: PreTrainedModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    persistent = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name not in persistent:
            yield name, tuple(buffer.shape)
