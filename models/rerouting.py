"""Attention modules that compute their softmax themselves: instances patched so that they ask hal instead.

Known by structure: a method `_attn` that is handed queries, keys and values and a mask, or a call of torch's
scaled_dot_product_attention. All that a module does around it, projections and positions, stays its own code.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from types import MethodType
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from hal.config import LayerShape, ModelShape

from .decoders import find_decoder
from .errors import NEXT_STEP, UnsupportedModelError
from .interface import attention_forward

Route = Literal["interface", "method", "torch"]
QUERIES_PER_KEY = "_hal_queries_per_key"
UNCHECKED = "_hal_unchecked"


def find_route(child: torch.nn.Module) -> Route | None:
    """How a module reaches its attention: transformers' interface, a method of its own, or torch's function; None for another."""
    return _read_route(inspect.unwrap(type(child).forward))


@lru_cache(maxsize=512)
def _read_route(forward: Any) -> Route | None:
    try:
        source = inspect.getsource(forward)
    except (OSError, TypeError):
        return None
    if "ALL_ATTENTION_FUNCTIONS" in source:
        return "interface"
    if "self._attn(" in source:
        return "method"
    return "torch" if "scaled_dot_product_attention(" in source else None


def layer_index(child: torch.nn.Module) -> int | None:
    """The number of the layer that a module belongs to, None where it has none."""
    numbers = (getattr(child, name, None) for name in ("layer_idx", "layer_id"))
    return next((number for number in numbers if isinstance(number, int)), None)


def check_routes(module: PreTrainedModel) -> None:
    """Raise UnsupportedModelError where a class that does not declare the interface attends in no known way."""
    if module._supports_attention_backend:
        return
    children = [child for child in find_decoder(module).modules() if layer_index(child) is not None]
    if any(find_route(child) is not None for child in children):
        return
    classes = ", ".join(sorted({type(child).__name__ for child in children}))
    raise UnsupportedModelError(
        f"{type(module).__name__} declares _supports_attention_backend = False, and its attention is neither behind "
        "transformers' attention interface nor in an _attn() or a scaled_dot_product_attention() of modules with a layer number "
        f"({classes or 'there are none'}), so hal cannot take it over; {NEXT_STEP}"
    )


def reroute(module: PreTrainedModel, shape: ModelShape) -> None:
    """Patch the instances whose attention is not behind transformers' interface; nothing for a model that has none.

    UnsupportedModelError where such a method, run once on random numbers, does not compute what the layer's shape says.
    """
    decoder = find_decoder(module)
    for child in decoder.modules():
        index = layer_index(child)
        if index is None or not 0 <= index < shape.num_layers or shape.layer(index).kind != "attention":
            continue
        route = find_route(child)
        if route in ("method", "torch"):
            _patch(child, shape.layer(index), route)
        if route == "torch":
            # Such modules look at every call whether torch's function was asked for; transformers' setter refuses them.
            decoder.config._attn_implementation = "sdpa"


def _patch(child: Any, layer: LayerShape, route: Route | None) -> None:
    if route == "method":
        if not any(buffer.is_meta for buffer in child.buffers(recurse=False)):
            _check_method(child, layer)
        child._attn = MethodType(_attend, child)
    else:
        child.forward = MethodType(_forward, child)
    child.layer_idx = layer.layer_id
    setattr(child, QUERIES_PER_KEY, layer.num_heads // max(1, layer.num_kv_heads))
    setattr(child, UNCHECKED, True)


def _attend(
    self: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *_args: Any,
    **_keywords: Any,
) -> tuple[torch.Tensor, None]:
    """In place of a module's _attn: [1, heads, tokens, width] like the queries, and no weights."""
    key, value = key.to(query.dtype), _narrow(self, query, value)
    out, _ = attention_forward(self, query, _narrow(self, query, key), value, _drop_causal(attention_mask))
    return out.transpose(1, 2), None


def _forward(self: torch.nn.Module, *args: Any, **keywords: Any) -> Any:
    """In place of a module's forward: the same, with torch's attention function answered by hal."""
    with _Routing(self):
        return type(self).forward(self, *args, **keywords)


class _Routing(TorchFunctionMode):
    """Answers scaled_dot_product_attention for one module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The plain result of anything else."""
        keywords = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            with torch._C.DisableTorchFunction():
                return _answer(self._module, *args, **keywords)
        return func(*args, **keywords)


def _answer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_keywords: Any,
) -> torch.Tensor:
    if attn_mask is None and not is_causal and query.shape[2] > 1:
        raise UnsupportedModelError(f"{type(module).__name__} asks torch for attention that is not causal; {NEXT_STEP}")
    key, value = _narrow(module, query, key), _narrow(module, query, value)
    scaling = query.shape[-1] ** -0.5 if scale is None else scale
    out, _ = attention_forward(module, query, key, value, _drop_causal(attn_mask), scaling=scaling, dropout=dropout_p)
    return out.transpose(1, 2)


def _narrow(module: torch.nn.Module, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """One key or value head for each group of queries, where the module has repeated it for every query."""
    each = getattr(module, QUERIES_PER_KEY)
    if each == 1 or keys.shape[1] != query.shape[1]:
        return keys
    narrow = keys[:, ::each]
    if module.__dict__.get(UNCHECKED) and not torch.equal(narrow.repeat_interleave(each, 1), keys):
        raise UnsupportedModelError(
            f"{type(module).__name__} has {keys.shape[1]} different keys or values and its config says one for {each} queries; "
            f"{NEXT_STEP}"
        )
    return narrow


def _drop_causal(mask: torch.Tensor | None) -> torch.Tensor | None:
    """None for the mask that lets every token see itself and all before it, which is what hal computes by itself."""
    if mask is None or mask.ndim != 4 or mask.shape[-2] != mask.shape[-1] or mask.shape[-1] == 1:
        return mask
    seen = mask if mask.dtype == torch.bool else mask == 0
    return None if bool((seen == torch.ones_like(seen).tril()).all()) else mask


def _check_method(child: Any, layer: LayerShape) -> None:
    """Raise UnsupportedModelError where _attn on a causal mask is not the softmax that the layer's shape describes."""
    count = 8 if layer.window is None else layer.window + 8
    count = min(count, getattr(child, "max_positions", count))
    parameter = next(child.parameters(), torch.empty(0))
    where: dict[str, Any] = {"dtype": parameter.dtype, "device": parameter.device}
    numbers = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, count, layer.head_dim, generator=numbers).to(**where) for _ in range(3))
    distance = torch.arange(count)[:, None] - torch.arange(count)
    seen = (distance >= 0) & (distance < (layer.window or count))
    causal = torch.zeros(count, count).masked_fill(distance < 0, torch.finfo(parameter.dtype).min).to(**where)
    scores = (query.float() @ key.float().mT * layer.softmax_scale).masked_fill(~seen.to(parameter.device), -torch.inf)
    try:
        with torch.inference_mode():
            found = child._attn(query, key, value, causal[None, None])[0]
        is_same = torch.allclose(found.float(), scores.softmax(-1) @ value.float(), atol=0.03, rtol=0.03)
    except Exception as error:
        raise UnsupportedModelError(f"the _attn of {type(child).__name__} takes no causal mask: {error}; {NEXT_STEP}") from error
    if not is_same:
        raise UnsupportedModelError(
            f"layer {layer.layer_id}: the _attn of {type(child).__name__} is not the softmax that its config describes (scale "
            f"{layer.softmax_scale}, window {layer.window}); {NEXT_STEP}"
        )
