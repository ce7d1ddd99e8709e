"""A compressed layer's own compressor, run for its products only: hal keeps the states and makes the entries.

The compressor, and the indexer's likewise, is called with a cache that keeps what it projected and has nothing of it
compressed. What hal then makes of the products is held against the module's own result once, before the first step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hal.common.backends.kernels import kernels
from hal.common.contract.call_values import CompressedBatch, IndexInputs, KVCache
from hal.common.contract.compressor import Compressor
from hal.common.contract.layouts import latent_layout, state_layout
from hal.config import LayerShape

from .binding import Step
from .errors import UnsupportedModelError
from .indexer import EmptyKeys, Products, check_topk, read_products

PARTS = ("position_bias", "kv_norm", "rotary_emb", "rope_layer_type")
ARGUMENTS = ("hidden_states", "q_residual", "position_ids", "past_key_values")
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}


def _pass_on(compressed: torch.Tensor) -> torch.Tensor:
    return compressed


@dataclass(slots=True, kw_only=True)
class StateCache:
    """The calls of a transformers cache that a compressor makes; it stands for the whole cache and for each of its layers.

    is_whole: every token is compressed, else none. show: what the compressor is told that the cache holds.
    """

    is_whole: bool = False
    show: Callable[[torch.Tensor], torch.Tensor] = _pass_on
    kv: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    compressed: torch.Tensor | None = None

    @property
    def layers(self) -> StateCache:
        """Itself, by any layer's number."""
        return self

    def __getitem__(self, _layer_idx: int) -> StateCache:
        return self

    def store_compression_weights(
        self, _name: str, kv: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Keep the new tokens' projections; what is ready to be compressed, and the first position of it."""
        self.kv, self.gate = kv, gate
        ready = slice(None) if self.is_whole else slice(0, 0)
        return kv[:, ready], gate[:, ready], 0

    def update_overlap_state(self, _name: str, *_chunk: object) -> tuple[None, None]:
        """Nothing is left of earlier groups."""
        return None, None

    def update_compressor_states(self, _name: str, compressed: torch.Tensor) -> torch.Tensor:
        """Keep the new entries; the entries so far."""
        self.compressed = compressed
        return self.show(compressed)


@dataclass(slots=True, kw_only=True)
class _Tapped:
    """One compressor module, its own forward and what its entries are."""

    module: torch.nn.Module
    layer: LayerShape
    width: int
    forward: Callable[..., Any]
    signature: inspect.Signature
    is_checked: bool = False

    def run(self, cache: StateCache, arguments: dict[str, Any]) -> tuple[Any, Compressor]:
        """The module's own answer, with a cache of ours, and its products."""
        answer = self.forward(**(arguments | {"past_key_values": cache}))
        if cache.kv is None or cache.gate is None:
            raise self.refuse("did not keep its projections in the cache it was given")
        return answer, self._read(cache.kv, cache.gate, arguments["hidden_states"], arguments["position_ids"])

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; the first call also holds hal's arithmetic against the module's."""
        arguments = dict(self.signature.bind(*args, **kwargs).arguments)
        if not self.is_checked:
            self.is_checked = True
            self._check(arguments)
        return arguments

    def refuse(self, fact: str) -> UnsupportedModelError:
        """The error for a compressor that hal cannot serve."""
        return UnsupportedModelError(f"layer {self.layer.layer_id} ({type(self.module).__name__}) {fact}")

    def _read(self, kv: torch.Tensor, gate: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor) -> Compressor:
        module: Any = self.module
        ratio, norm = self.layer.compress_ratio or 1, module.kv_norm
        starts = positions // ratio * ratio
        cos, sin = module.rotary_emb(hidden, position_ids=starts, layer_type=module.rope_layer_type)
        return Compressor(
            kv=kv[0],
            score=gate[0],
            position_bias=module.position_bias,
            norm_weight=norm.weight,
            eps=norm.variance_epsilon,
            cos=cos[0],
            sin=sin[0],
        )

    def _check(self, arguments: dict[str, Any]) -> None:
        """Raise UnsupportedModelError where two groups of random tokens are compressed to something else than hal's."""
        tokens = 2 * (self.layer.compress_ratio or 1)
        source = torch.Generator().manual_seed(0)
        positions = torch.arange(tokens, device=arguments["position_ids"].device)[None]
        random = {
            name: torch.randn(1, tokens, arguments[name].shape[-1], generator=source).to(arguments[name])
            for name in ("hidden_states", "q_residual")
        }
        cache = StateCache(is_whole=True)
        _, compressor = self.run(cache, arguments | random | {"position_ids": positions})
        if cache.compressed is None:
            raise self.refuse("did not keep its entries in the cache it was given")
        own, found = cache.compressed[0].float().cpu(), self._compress(compressor)
        limit = TOLERANCE.get(cache.compressed.dtype, 5e-2)
        if own.shape != found.shape or not torch.allclose(own, found, rtol=limit, atol=limit):
            raise self.refuse(
                f"compresses tokens to {list(own.shape)} in another way than the softmax over groups, norm and rotation that hal "
                f"computes ({list(found.shape)})"
            )

    def _compress(self, compressor: Compressor) -> torch.Tensor:
        """What hal's CPU backend makes of two groups of tokens."""
        ratio, tokens = self.layer.compress_ratio or 1, compressor.kv.shape[0]
        wide = compressor.kv.shape[1]
        here = {
            name: getattr(compressor, name).float().cpu()
            for name in ("kv", "score", "position_bias", "norm_weight", "cos", "sin")
        }
        states = KVCache(torch.zeros(1, tokens, 2 * wide), state_layout(wide, "float32"), tokens, tokens)
        entries = KVCache(torch.zeros(1, 2, self.width), latent_layout(self.width, 0, "float32"), 2, 2)
        slots = torch.arange(tokens)
        closing = torch.where((slots + 1) % ratio == 0, slots // ratio, -1)
        batch = CompressedBatch(
            state_slots=slots,
            entry_slots=closing,
            query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
            req_id=torch.zeros(tokens, dtype=torch.int32),
            positions=slots,
            block_table=torch.zeros(1, 1, dtype=torch.int32),
        )
        kernels("cpu").compress_states(Compressor(eps=compressor.eps, **here), states, entries, batch, ratio=ratio)
        return entries.storage[0]


def tap_compressor(module: torch.nn.Module, layer: LayerShape, step: Step) -> None:
    """Make one compressor, and the indexer in it, leave their products in `step` instead of entries; classes stay as they are.

    UnsupportedModelError where the module is built or computes in another way.
    """
    tapped = _tap(module, layer, layer.head_dim)

    def run(*args: Any, **kwargs: Any) -> Any:
        answer, step.compressor = tapped.run(StateCache(), tapped.bind(args, kwargs))
        return answer

    module.forward = run
    indexer = getattr(module, "indexer", None)
    if layer.indexer is not None and isinstance(indexer, torch.nn.Module):
        _tap_indexer(indexer, layer, step)


def _tap_indexer(module: torch.nn.Module, layer: LayerShape, step: Step) -> None:
    shape = layer.indexer
    if shape is None:
        return
    check_topk(module, layer, shape)
    tapped = _tap(module, layer, shape.head_dim)

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = tapped.bind(args, kwargs)
        products = Products(k=arguments["hidden_states"])
        cache = StateCache(show=lambda compressed: EmptyKeys.make(compressed, products, 1.0))
        chosen, keys = tapped.run(cache, arguments)
        q, weights = read_products(products, module, layer, shape)
        step.index = IndexInputs(q, keys, weights)
        return chosen

    module.forward = run


def _tap(module: torch.nn.Module, layer: LayerShape, width: int) -> _Tapped:
    signature = inspect.signature(module.forward)
    tapped = _Tapped(module=module, layer=layer, width=width, forward=module.forward, signature=signature)
    absent = [name for name in PARTS if not hasattr(module, name)]
    absent += [name for name in ARGUMENTS if name not in tapped.signature.parameters]
    if absent or not hasattr(module.kv_norm, "variance_epsilon"):
        raise tapped.refuse(f"has no {', '.join(absent) or 'epsilon in its norm'}; hal knows compressors that have them")
    return tapped
