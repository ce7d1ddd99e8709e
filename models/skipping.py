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

UNMISTAKABLE = frozenset({"causal_mask", "masked_bias"})
"""Of these, those that no parameter is called by. Bloom and Falcon kept theirs in self_attention.scale_mask_softmax."""

VERSIONS = frozenset({"version"})
"""Last components under which files converted from fairseq (OPT, BART) hold the number of their format."""

SCALARS = ((), (1,))


@dataclass(slots=True)
class BufferRules:
    """What a module's own buffers and attention modules say about tensors that resolve to no parameter."""

    module: PreTrainedModel
    attentions: frozenset[tuple[str, ...]] = field(init=False)
    places: frozenset[tuple[str, ...]] = field(init=False)
    recomputed: dict[str, list[tuple[str, tuple[int, ...]]]] = field(init=False)

    def __post_init__(self) -> None:
        self.attentions = frozenset(_tail(name.split(".")) for name in _attention_paths(self.module))
        self.places = frozenset(_tail(name.split(".")) for name, _ in self.module.named_modules() if name)
        self.recomputed = {}
        for name, shape in _recomputed_buffers(self.module):
            self.recomputed.setdefault(name.rpartition(".")[2], []).append((name, shape))

    def explain(self, tensor: StoredTensor) -> str | None:
        """Why a tensor that resolves to no parameter may be left out, None if it may not.

        Exact name, place and shape only: a mask or its fill value in an attention module that the model has, the format's
        number beside a part that it has, or the name and shape of a buffer that the module recomputes.
        """
        *parents, last = tensor.name.split(".")
        if _is_old_mask(last, tensor.shape) and self._lies_in_attention(parents, last):
            return f"old mask buffer {list(tensor.shape)}"
        if last in VERSIONS and tensor.shape in SCALARS and parents and _tail(parents) in self.places:
            return f"version number of an old format {list(tensor.shape)}"
        for name, shape in self.recomputed.get(last, ()):
            if shape == tensor.shape:
                return f"buffer that the module computes itself ({name})"
        return None

    def _lies_in_attention(self, parents: list[str], last: str) -> bool:
        """Directly in it; a name that can only be a mask's also in a part of it that is no longer built."""
        if _tail(parents) in self.attentions:
            return True
        return last in UNMISTAKABLE and _tail(parents[:-1]) in self.attentions and _tail(parents) not in self.places


def _is_old_mask(last: str, shape: tuple[int, ...]) -> bool:
    if last in FILL_VALUES:
        return shape in SCALARS
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
