"""What stands behind an attention module of a running model: its layer's shape and the step being computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hal.config import LayerShape, MLAShape

from .checks import check_call, scaled_query
from .errors import UnsupportedModelError
from .interface import AttentionCall

if TYPE_CHECKING:
    from hal.common.contract.call_values import IndexInputs
    from hal.common.contract.compressor import Compressor
    from hal.common.contract.step import StepMetadata
    from hal.common.running.attention import Attention


@dataclass(slots=True)
class Step:
    """The step that a model is computing; one object per model, shared by its bindings. index and compressor hold the
    products of the indexer and the compressor that ran last, until their layer's attention takes them."""

    attention: Attention | None = None
    metadata: StepMetadata | None = None
    index: IndexInputs | None = None
    compressor: Compressor | None = None

    def current(self) -> tuple[Attention, StepMetadata]:
        """The open attention and this step's metadata; UnsupportedModelError outside of a step."""
        if self.attention is None or self.metadata is None:
            raise UnsupportedModelError(
                "this module runs on hal attention and keeps no cache of its own; call Model.generate() or Model.forward()"
            )
        return self.attention, self.metadata

    def take_index(self) -> IndexInputs | None:
        """The waiting indexer products, once."""
        index, self.index = self.index, None
        return index

    def take_compressor(self) -> Compressor | None:
        """The waiting compressor products, once."""
        compressor, self.compressor = self.compressor, None
        return compressor

    def end(self) -> None:
        """Leave the step, with nothing of it waiting."""
        self.metadata = self.index = self.compressor = None


def by_token(heads_first: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, width] as [tokens, heads, width], aliasing it; in one step for the one token of a lone decode."""
    _, heads, tokens, width = heads_first.shape
    return heads_first.view(1, heads, width) if tokens == 1 else heads_first[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class DenseBinding:
    """Serves multi-head, grouped-query and windowed layers."""

    layer: LayerShape
    step: Step

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        sink = check_call(self.layer, module, call)
        attention, metadata = self.step.current()
        k, v = (by_token(key), by_token(value)) if self.layer.owns_kv else (None, None)
        q = by_token(scaled_query(self.layer, query, call))
        out = attention.attend(self.layer.layer_id, q, k, v, metadata, sink=sink)
        return out.unsqueeze(0)


@dataclass(frozen=True, slots=True)
class LatentBinding:
    """Serves MLA layers, sparse or not: key is the latent and value the rotary key, as the patched expand_kv leaves them."""

    layer: LayerShape
    mla: MLAShape
    step: Step

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        sink = check_call(self.layer, module, call)
        attention, metadata = self.step.current()
        q_nope, q_rope = query[0].transpose(0, 1).split([self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim], dim=-1)
        out = attention.attend_mla(
            self.layer.layer_id,
            q_nope,
            q_rope,
            key[0, 0],
            value[0, 0],
            metadata,
            index=self.step.take_index(),
            sink=sink,
        )
        return out.unsqueeze(0)


@dataclass(frozen=True, slots=True)
class CompressedBinding:
    """Serves compressed layers: key and value are one shared row per token, entries come from the tapped compressor."""

    layer: LayerShape
    step: Step

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        sink = check_call(self.layer, module, call)
        attention, metadata = self.step.current()
        out = attention.attend_compressed(
            self.layer.layer_id,
            by_token(query),
            key[0, 0] if self.layer.owns_kv else None,
            self.step.take_compressor(),
            metadata,
            index=self.step.take_index(),
            sink=sink,
        )
        return out.unsqueeze(0)
