"""Where a layer's parts are kept, and what is said of the tensors that come for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from hal.common.contract.call_values import KVCache
from hal.common.contract.step import StepMetadata
from hal.common.contract.tensor_checks import Expected
from hal.config import LayerShape

from .layer_kernels import LayerKernels


class Place(NamedTuple):
    """A cache, and the cache group whose pages and slots it follows."""

    cache: KVCache
    group: int

    def slots(self, metadata: StepMetadata) -> torch.Tensor:
        """int64 [tokens]: where the step's tokens go."""
        return metadata.groups[self.group].slot_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTo:
    """What every layer of an opened plan has: its shape, its calls, its query heads on this rank, and where tensors live."""

    layer: LayerShape
    kernels: LayerKernels
    num_heads: int
    dtype: torch.dtype
    device: torch.device

    def expect(self, num_tokens: int) -> Expected:
        """What the tensors of a step of so many tokens must be."""
        return Expected(layer_id=self.layer.layer_id, tokens=num_tokens, dtype=self.dtype, device=self.device)
