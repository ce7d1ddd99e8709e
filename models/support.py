"""Which models hal can serve, told from structure before anything is changed."""

from __future__ import annotations

import inspect

import torch
from transformers import PreTrainedModel

from hal.common.contract.limits import Limits
from hal.config import LayerShape, ModelShape, read_shape

from .errors import NEXT_STEP, UnsupportedModelError
from .rerouting import check_routes

GROWING_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary kinds whose frequencies depend on the longest position of a whole batch."""


def read_module(module: PreTrainedModel) -> ModelShape:
    """The shape of a model in memory. UnsupportedModelError for anything but a transformers model."""
    if not isinstance(module, PreTrainedModel):
        raise UnsupportedModelError(
            f"{type(module).__name__} is no transformers PreTrainedModel; hal.models takes nothing else over"
        )
    return read_shape(module.config)


def check_supported(module: PreTrainedModel, shape: ModelShape) -> None:
    """Raise UnsupportedModelError that names the module or layer and why it cannot run on hal attention."""
    name = type(module).__name__
    for layer in shape.layers:
        reason = _why_not(layer)
        if reason:
            raise UnsupportedModelError(f"{name}, layer {layer.layer_id}: {reason}; {NEXT_STEP}")
    if "decoder_input_ids" in inspect.signature(module.forward).parameters:
        raise UnsupportedModelError(f"{name} is an encoder-decoder; hal.models serves decoders; {NEXT_STEP}")
    check_routes(module)
    if not module.can_generate():
        raise UnsupportedModelError(
            f"{name} makes hidden states and no tokens; give the model with its head, as AutoModelForCausalLM makes it"
        )


def _why_not(layer: LayerShape) -> str:
    if layer.kind == "none":
        return "it is not an attention layer (linear attention, convolution or state space); its state cannot be paged yet"
    if not layer.causal:
        return "its tokens see later ones (it is not causal), so no step's keys can be kept for the next"
    if layer.compress_ratio and not layer.owns_entries:
        return "it reads the compressed entries of another layer, which is not built yet in hal.models"
    if layer.kind == "cross":
        return "cross-attention inside a decoder is not served"
    if layer.position_bias is not None:
        return f"it adds a position bias ({layer.position_bias}) to its scores, which hal does not compute"
    if layer.indexer is not None and layer.indexer.pool > 1:
        return f"its indexer pools {layer.indexer.pool} keys, which is not built yet in hal.models"
    return ""


def check_rope(module: torch.nn.Module, limits: Limits) -> None:
    """Raise UnsupportedModelError where one long request of a step would change the positions of its neighbours."""
    for child in module.modules():
        kinds = getattr(child, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if kind in GROWING_ROPE and _depends_on_neighbours(child, layer_type, limits.max_model_len):
                raise UnsupportedModelError(
                    f"{type(child).__name__} ({kind}) turns every request of a step differently once one of them is long, and "
                    f"max_model_len {limits.max_model_len} allows that; lower it to the length the model was first trained on"
                )


def _depends_on_neighbours(rotary: torch.nn.Module, layer_type: str | None, max_model_len: int) -> bool:
    # A fresh copy with real numbers: the model's own may still be on the meta device, and calls leave traces in it.
    with torch.device("cpu"):
        fresh = type(rotary)(rotary.config)
    keywords = {} if layer_type is None else {"layer_type": layer_type}
    sample = torch.zeros((1, 1, 1))
    short = torch.tensor([[1, 2, 3]])
    mixed = torch.tensor([[1, 2, 3, max_model_len - 1]])
    alone, together = fresh(sample, short, **keywords)[0], fresh(sample, mixed, **keywords)[0]
    return not torch.equal(alone, together[:, :3])
