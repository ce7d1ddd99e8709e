"""One layer's call on random inputs, as a model would make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hal.config import LayerShape
from hal.config.sizes import kv_heads_on_rank

from .console import InputError

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import IndexInputs
    from hal.common.contract.compressor import Compressor
    from hal.common.contract.step import StepMetadata
    from hal.common.running.attention import Attention

Call = Callable[[], object]


class LayerCalls:
    """Makes calls of an Attention's layers for a step; every tensor is random, on the plan's device and in its type."""

    def __init__(self, attention: Attention) -> None:
        import torch

        self._attention = attention
        plan = attention.plan
        self._tp = plan.parallel.tp
        self._kind: dict[str, Any] = {"dtype": getattr(torch, plan.dtype), "device": plan.device.torch_device}
        torch.manual_seed(0)
        for cache in attention.caches.values():
            if cache.storage.dtype in (torch.float16, torch.bfloat16, torch.float32):
                cache.storage.normal_()
        for layer in plan.shape.layers:
            if layer.mla is not None:
                heads, lora = layer.num_heads // self._tp, layer.mla.kv_lora_rank
                up = [self._random(heads, width, lora) for width in (layer.mla.qk_nope_head_dim, layer.mla.v_head_dim)]
                attention.bind_weights(layer.layer_id, *up)

    def prepare(self, layer: LayerShape, metadata: StepMetadata) -> Call:
        """The layer's call on the tokens of a step; InputError for a kind of layer that hal does not attend for."""
        makers = {"attention": self._attend, "mla": self._attend_mla, "compressed": self._attend_compressed}
        if layer.kind not in makers:
            raise InputError(f"layer {layer.layer_id} is of kind {layer.kind!r}, which is not measured")
        return makers[layer.kind](layer, metadata)

    def _attend(self, layer: LayerShape, metadata: StepMetadata) -> Call:
        tokens, heads, kv_heads = metadata.num_tokens, layer.num_heads // self._tp, kv_heads_on_rank(layer.num_kv_heads, self._tp)
        q, sink, k, v = self._random(tokens, heads, layer.head_dim), self._sink(layer), None, None
        if layer.owns_kv:
            k, v = self._random(tokens, kv_heads, layer.head_dim), self._random(tokens, kv_heads, layer.v_head_dim)
        return lambda: self._attention.attend(layer.layer_id, q, k, v, metadata, sink=sink)

    def _attend_mla(self, layer: LayerShape, metadata: StepMetadata) -> Call:
        mla, tokens, heads = layer.mla, metadata.num_tokens, layer.num_heads // self._tp
        if mla is None:
            raise InputError(f"layer {layer.layer_id} is of kind 'mla' and has no widths of one")
        q_nope, q_rope = (self._random(tokens, heads, width) for width in (mla.qk_nope_head_dim, mla.qk_rope_head_dim))
        latent, k_rope = (self._random(tokens, width) for width in (mla.kv_lora_rank, mla.qk_rope_head_dim))
        index, sink = self._index(layer, tokens), self._sink(layer)
        return lambda: self._attention.attend_mla(
            layer.layer_id, q_nope, q_rope, latent, k_rope, metadata, index=index, sink=sink
        )

    def _attend_compressed(self, layer: LayerShape, metadata: StepMetadata) -> Call:
        tokens = metadata.num_tokens
        q, sink = self._random(tokens, layer.num_heads // self._tp, layer.head_dim), self._sink(layer)
        kv = self._random(tokens, layer.head_dim) if layer.owns_kv else None
        compressor = self._compressor(layer, tokens, layer.head_dim) if layer.owns_entries else None
        index = self._index(layer, tokens)
        return lambda: self._attention.attend_compressed(layer.layer_id, q, kv, compressor, metadata, index=index, sink=sink)

    def _index(self, layer: LayerShape, tokens: int) -> IndexInputs | None:
        from hal.common.contract.call_values import IndexInputs

        indexer = layer.indexer
        if indexer is None or not indexer.owns:
            return None
        keys: torch.Tensor | Compressor = self._random(tokens, indexer.head_dim)
        if layer.compress_ratio:
            keys = self._compressor(layer, tokens, indexer.head_dim)
        return IndexInputs(
            q=self._random(tokens, indexer.num_heads, indexer.head_dim), k=keys, weights=self._random(tokens, indexer.num_heads)
        )

    def _compressor(self, layer: LayerShape, tokens: int, width: int) -> Compressor:
        from hal.common.contract.compressor import Compressor

        ratio = layer.compress_ratio or 1
        wide, pairs = width * (layer.compress_span // ratio), (layer.rope_head_dim or 0) // 2
        return Compressor(
            kv=self._random(tokens, wide),
            score=self._random(tokens, wide),
            position_bias=self._random(ratio, wide),
            norm_weight=self._random(width),
            cos=self._random(tokens, pairs) if pairs else None,
            sin=self._random(tokens, pairs) if pairs else None,
        )

    def _sink(self, layer: LayerShape) -> torch.Tensor | None:
        return self._random(layer.num_heads // self._tp) if layer.sink else None

    def _random(self, *shape: int) -> torch.Tensor:
        import torch

        return torch.randn(*shape, **self._kind)
