"""Checks of the tensors of an attention call, all of them before a cache is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hal.config import LayerShape

from .dense import refuse_shared
from .errors import BatchError, LayoutError
from .tensor_faults import FLOATS, INT32, Dtypes, find_fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a call's tensors must be: so many tokens, on this device, activations in this type."""

    layer_id: int
    tokens: int
    dtype: torch.dtype
    device: torch.device

    def check_activations(self, **tensors: tuple[torch.Tensor | None, tuple[int, ...]]) -> None:
        """Raise LayoutError for a tensor that is not [tokens, *shape] in the plan's type."""
        self._check(tensors, (self.dtype,))

    def check_floats(self, **tensors: tuple[torch.Tensor | None, tuple[int, ...]]) -> None:
        """Raise LayoutError for a tensor that is not [tokens, *shape] of some floating type."""
        self._check(tensors, FLOATS)

    def check_choice(self, topk: torch.Tensor, width: int) -> None:
        """Raise LayoutError for a choice that is not int32 [tokens, width]."""
        self._check({"topk": (topk, (width,))}, INT32)

    def check_sink(self, layer: LayerShape, sink: torch.Tensor | None, heads: int) -> None:
        """Raise BatchError where a sink is missing or not wanted, LayoutError where it has another shape."""
        if sink is None:
            if layer.sink:
                raise BatchError(f"layer {self.layer_id} has attention sinks; pass sink, float [{heads}]")
            return
        if not layer.sink:
            raise BatchError(f"layer {self.layer_id} has no attention sinks; sink must be None")
        self._check({"sink": (sink, (heads,))}, FLOATS, ())

    def check_out(self, out: torch.Tensor | None, shape: tuple[int, ...], **read: torch.Tensor | None) -> None:
        """Raise LayoutError for a given out of another shape, type or device, or in memory of a tensor that is read.

        read: what the call reads when part of out is written already.
        """
        if out is not None:
            self._check({"out": (out, shape)}, (self.dtype,))
            refuse_overlap(self.layer_id, out, **read)

    def _check(
        self,
        tensors: Mapping[str, tuple[torch.Tensor | None, tuple[int, ...]]],
        dtypes: Dtypes,
        leading: tuple[int, ...] | None = None,
    ) -> None:
        leading = (self.tokens,) if leading is None else leading
        place = torch.device(self.device.type)
        for name, (tensor, shape) in tensors.items():
            if fault := find_fault(name, tensor, dtypes, (*leading, *shape), place):
                raise LayoutError(f"layer {self.layer_id}: {fault} for this step")


def refuse_overlap(layer_id: int, out: torch.Tensor, **read: torch.Tensor | None) -> None:
    """Raise LayoutError for an out with elements in one place, or in memory of a tensor that the layer's call still reads."""
    try:
        refuse_shared(out, **{name: tensor for name, tensor in read.items() if tensor is not None})
    except LayoutError as error:
        raise LayoutError(f"layer {layer_id}: {error}") from None
