"""Parts of parameters that several tensors are put together to: what of each tensor a rank has to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.core_model_loading import Concatenate, MergeModulelist

from .keys import KeyResolver
from .slices import Part


class SlicedTensor:
    """A safetensors slice of which only a part is ever read, as transformers' loader asks for it."""

    def __init__(self, source: Any, part: Part, shape: Sequence[int]) -> None:
        self._source, self._part, self._shape = source, part, shape

    def __getitem__(self, _everything: Any) -> torch.Tensor:
        """The part, dense; whatever is asked for, which is everything.

        A part of the columns would otherwise stay a view of the file, and its rows far apart in it.
        """
        return self._part.take(self._source, self._shape).contiguous()

    def get_shape(self) -> list[int]:
        """The part's shape."""
        return list(self._part.shape(self._shape))

    def get_dtype(self) -> str:
        """The stored type."""
        dtype: str = self._source.get_dtype()
        return dtype


def source_parts(resolver: KeyResolver, stored: Mapping[str, Sequence[int]], part: Part) -> dict[str, Part] | None:
    """By tensor, the part that makes up `part` of their one parameter; None where it has to be converted whole first.

    stored: the shapes of the tensors by the names that they are read under. Known are plain copies, and stacks along a new
    first dimension, rows put end to end, and both in that order, as fused experts are made of single ones.
    """
    patterns = {name: place.pattern for name in stored if (place := resolver.resolve(name)) is not None}
    if set(patterns.values()) == {None}:
        is_plain = len(stored) == 1 and all(_fits(shape, part.dim, part.size) for shape in stored.values())
        return dict.fromkeys(stored, part) if is_plain else None
    converter = next((each for each in resolver.converters if set(patterns.values()) <= set(each.source_patterns)), None)
    if converter is None or len(patterns) != len(stored):
        return None
    operations = [operation for operation in converter.operations if not _is_expansion(operation)]
    if len(operations) < len(converter.operations) and len(stored) > 1:
        return None
    if not operations:
        return dict.fromkeys(stored, part) if all(_fits(shape, part.dim, part.size) for shape in stored.values()) else None
    is_stack = bool(operations) and type(operations[0]) is MergeModulelist and operations[0].dim == 0
    rest = operations[1:] if is_stack else operations
    dim = part.dim - is_stack
    if dim < 0 or len(rest) > 1:
        return None
    if not rest:
        found = {name: Part(dim=dim, size=part.size, runs=part.runs) for name in stored}
        return found if len(set(patterns.values())) == 1 and _all_fit(stored, found) else None
    if type(rest[0]) is not Concatenate or rest[0].dim < 0 or rest[0].num_shards_attribute is not None:
        return None
    if rest[0].dim != part.dim:
        found = {name: Part(dim=dim, size=part.size, runs=part.runs) for name in stored}
    else:
        found = _end_to_end(converter.source_patterns, patterns, stored, part, dim)
    return found if _all_fit(stored, found) and all(each.runs for each in found.values()) else None


def _is_expansion(operation: Any) -> bool:
    """Whether an operation multiplies by scales; a tensor that comes without any passes it as it is."""
    return getattr(operation, "hf_quantizer", None) is not None


def _end_to_end(
    order: Sequence[str],
    patterns: Mapping[str, str | None],
    stored: Mapping[str, Sequence[int]],
    part: Part,
    dim: int,
) -> dict[str, Part]:
    found: dict[str, Part] = {}
    start = 0
    for pattern in order:
        names = [name for name, each in patterns.items() if each == pattern]
        if not names:
            continue
        length = stored[names[0]][dim] if dim < len(stored[names[0]]) else 0
        found |= {name: part.within(dim, start, start + length) for name in names}
        start += length
    return found if start == part.size else {}


def _all_fit(stored: Mapping[str, Sequence[int]], found: Mapping[str, Part]) -> bool:
    return found.keys() == stored.keys() and all(_fits(stored[name], part.dim, part.size) for name, part in found.items())


def _fits(shape: Sequence[int], dim: int, size: int) -> bool:
    return dim < len(shape) and shape[dim] == size
