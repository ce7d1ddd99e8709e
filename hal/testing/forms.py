"""The same values as other views of memory: transposed, sliced, expanded, off an allocation's start, rows and elements apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import mul
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A tensor as one form has it, and all the memory around it, which holds nothing that anybody may read or write."""

    tensor: torch.Tensor
    memory: torch.Tensor

    @property
    def margin(self) -> torch.Tensor:
        """bool like memory: True for what belongs to no element of the tensor's."""
        places = torch.arange(self.memory.numel(), device=self.memory.device)
        inside = places.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())
        outside = torch.ones(places.numel(), dtype=torch.bool, device=places.device)
        outside[inside.reshape(-1)] = False
        return outside


Form = Callable[[torch.Tensor], View]


def expand(tensor: torch.Tensor, dim: int) -> View:
    """The tensor's first index along a dimension in place of all of them."""
    one = _apart(tensor.narrow(dim, 0, 1), gap=0)
    return View(tensor=one.tensor.expand(tensor.shape), memory=one.memory)


def overlap(tensor: torch.Tensor) -> View:
    """Memory as a tensor of this shape whose rows begin inside the row before them, without a stride of 0."""
    row, *rest = _dense_strides(tuple(tensor.shape))
    memory = _surround(tensor, tensor.numel() + 4)
    return View(tensor=memory.as_strided(tensor.shape, (max(1, row - 1), *rest), 1), memory=memory)


def copy_as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own, with the same strides."""
    if not tensor.numel():
        return tensor.clone()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return elements.as_strided(tensor.shape, tensor.stride())


def _surround(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Memory of so many elements: NaN, bytes of 255, and zeros for whole numbers, so that a wrong index stays a place."""
    if tensor.dtype.is_floating_point:
        return torch.full((count,), torch.nan, dtype=tensor.dtype, device=tensor.device)
    return torch.full((count,), 255 if tensor.dtype is torch.uint8 else 0, dtype=tensor.dtype, device=tensor.device)


def _place(tensor: torch.Tensor, memory: torch.Tensor, strides: tuple[int, ...], offset: int) -> View:
    view = memory.as_strided(tensor.shape, strides, offset)
    view.copy_(tensor)
    return View(tensor=view, memory=memory)


def _dense_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(reversed(sizes[1:]), mul, initial=1))[::-1] if sizes else ()


def _apart(tensor: torch.Tensor, gap: int) -> View:
    """Dense rows so many elements apart, the first of them three elements from the start."""
    row = tensor[:1].numel() + gap
    strides = (row, *_dense_strides(tuple(tensor.shape))[1:])
    return _place(tensor, _surround(tensor, row * tensor.shape[0] + 5), strides, 3)


def _sparse(tensor: torch.Tensor, step: int) -> View:
    """Elements so many places apart."""
    strides = tuple(step * stride for stride in _dense_strides(tuple(tensor.shape)))
    return _place(tensor, _surround(tensor, step * tensor.numel() + step), strides, step // 2)


def _permuted(tensor: torch.Tensor, order: tuple[int, ...]) -> View:
    """Memory in which dimensions follow each other in this order."""
    inner = _dense_strides(tuple(tensor.shape[dim] for dim in order))
    strides = tuple(inner[order.index(dim)] for dim in range(tensor.dim()))
    return _place(tensor, _surround(tensor, tensor.numel() + 4), strides, 0)


def _transposed(tensor: torch.Tensor) -> View:
    return _permuted(tensor, tuple(reversed(range(tensor.dim()))))


def _heads_first(tensor: torch.Tensor) -> View:
    """What [heads, tokens, ...] is as [tokens, heads, ...]."""
    first, second = (1, 0) if tensor.dim() > 1 else (0, 1)
    return _permuted(tensor, (first, second, *range(2, tensor.dim()))[: tensor.dim()])


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "offset": partial(_apart, gap=0),
        "rows_apart": partial(_apart, gap=3),
        "every_second": partial(_sparse, step=2),
        "column": partial(_sparse, step=5),
        "transposed": _transposed,
        "heads_first": _heads_first,
    }
)
"""Forms of any tensor of a dimension or more, all elements in places of their own; some are one for tensors of few dimensions."""
