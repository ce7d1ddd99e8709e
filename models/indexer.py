"""A sparse model's own indexer, run for its products only: hal keeps the keys and computes the scores.

The indexer is called with a cache that keeps its key and returns an empty one, so that its scores cost nothing. The empty
key follows what is done to it, which gives the query, the head weights and every scale, whatever the rope style.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from hal.common.contract.call_values import IndexInputs
from hal.config import IndexerShape, LayerShape

from .binding import Step
from .errors import UnsupportedModelError

PRODUCTS = frozenset({torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm})
SCALINGS = frozenset({torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__})
RECTIFIERS = frozenset({functional.relu, torch.relu, torch.Tensor.relu})
RESHAPES = frozenset(
    {
        torch.transpose,
        torch.unsqueeze,
        torch.Tensor.transpose,
        torch.Tensor.unsqueeze,
        torch.Tensor.float,
        torch.Tensor.to,
    }
)


@dataclass(slots=True)
class Products:
    """What one run of an indexer showed of itself: k [1, tokens, dim], q [1, tokens, heads, dim], weights [1, tokens, heads]."""

    k: torch.Tensor
    q: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    is_rectified: bool = False


class EmptyKeys(torch.Tensor):
    """Index keys of zero tokens that note what they are multiplied with; see the module's docstring."""

    products: Products
    scale: float

    @classmethod
    def make(cls, empty: torch.Tensor, products: Products, scale: float) -> EmptyKeys:
        """A noting view of an empty tensor."""
        keys: EmptyKeys = empty.as_subclass(cls)
        keys.products, keys.scale = products, scale
        return keys

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The plain result, noting an operation that the score depends on. UnsupportedModelError for an unknown one."""
        keys = next(argument for argument in args if isinstance(argument, EmptyKeys))
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor):
            return result
        products = keys.products
        if func in PRODUCTS and keys is args[1] and products.q is None:
            products.q = args[0]
            return cls.make(result, products, keys.scale)
        if func in PRODUCTS and keys is args[1] and products.is_rectified:
            products.weights = args[0].squeeze(-2) * keys.scale
            return result
        if func in RECTIFIERS and keys.scale > 0.0:
            products.is_rectified = True
            return cls.make(result, products, keys.scale)
        if func in SCALINGS and isinstance(args[1], float | int):
            return cls.make(result, products, keys.scale * args[1])
        if func in SCALINGS and products.is_rectified and keys is args[0] and args[1].shape[-1:] == (1,):
            products.weights = args[1].squeeze(-1) * keys.scale
            return result
        if func in RESHAPES:
            return cls.make(result, products, keys.scale)
        raise UnsupportedModelError(
            f"the indexer applies {getattr(func, '__name__', func)} to its scores; hal knows sum_h weights_h * relu(q_h . k)"
        )


@dataclass(slots=True)
class KeepingCache:
    """The one call of a transformers cache that an indexer makes: keeps the new keys and returns none."""

    products: Products | None = None

    def update_indexer(self, k: torch.Tensor, _layer_idx: int) -> torch.Tensor:
        """An empty, noting stand-in for the cached keys."""
        self.products = Products(k=k)
        return EmptyKeys.make(k[:, :0], self.products, 1.0)


def tap_indexer(indexer: torch.nn.Module, layer: LayerShape, shape: IndexerShape, step: Step) -> None:
    """Make one indexer leave its products in `step` instead of choosing tokens; its class stays as it is.

    UnsupportedModelError if the indexer holds another top-k than the config gave, or scores in an unknown way.
    """
    check_topk(indexer, layer, shape)
    forward = indexer.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        cache = KeepingCache()
        chosen = forward(*args, **(kwargs | {"past_key_values": cache}))
        q, weights = read_products(cache.products, indexer, layer, shape)
        step.index = IndexInputs(q, cache.products.k[0], weights) if cache.products is not None else None
        return chosen

    indexer.forward = run


def check_topk(indexer: torch.nn.Module, layer: LayerShape, shape: IndexerShape) -> None:
    """Raise UnsupportedModelError if the indexer holds another top-k than the config gave."""
    held = getattr(indexer, "index_topk", shape.topk)
    if held != shape.topk:
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(indexer).__name__}) holds index_topk={held}, its config says {shape.topk}"
        )


def read_products(
    products: Products | None, indexer: torch.nn.Module, layer: LayerShape, shape: IndexerShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [tokens, heads, dim] in the keys' type and weights [tokens, heads]; UnsupportedModelError where a run showed others."""
    if products is None or products.q is None or products.weights is None:
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(indexer).__name__}) did not score its keys through the cache it was given"
        )
    q, weights = products.q[0], products.weights[0]
    if q.shape[1:] != (shape.num_heads, shape.head_dim) or weights.shape != q.shape[:2]:
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(indexer).__name__}) made index queries {list(q.shape)} and weights "
            f"{list(weights.shape)}; its config says [tokens, {shape.num_heads}, {shape.head_dim}]"
        )
    # transformers widens the queries before it multiplies; back in the keys' type they are what they were.
    return q.to(products.k.dtype), weights
