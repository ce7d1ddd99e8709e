"""MLA modules: keep keys and values compressed, and hand the up-projections to hal."""

from __future__ import annotations

import torch

from hal.config import LayerShape, MLAShape

from .errors import UnsupportedModelError

USUAL_NAME = "kv_b_proj"


def keep_compressed(kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent [1, 1, tokens, lora] and rotary key [1, 1, tokens, rope] as they came, in place of a module's expand_kv."""
    return kv_nope, k_rot


def patch_expand(module: torch.nn.Module) -> None:
    """Make one attention module pass its latent on instead of expanding it; its class stays as it is."""
    module.expand_kv = keep_compressed  # type: ignore[assignment]


def find_up_projection(module: torch.nn.Module, layer: LayerShape, mla: MLAShape) -> str:
    """The name of the module's own up-projection, found by its widths: [heads * (nope + v), lora], no bias.

    UnsupportedModelError if no linear layer, or more than one, has the widths that the layer gives.
    """
    wanted = (layer.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    linears = {name: child for name, child in module.named_children() if isinstance(child, torch.nn.Linear)}
    found = [name for name, child in linears.items() if tuple(child.weight.shape) == wanted and child.bias is None]
    # Query and key projections can have the same widths as the up-projection; the name decides only between equals.
    if len(found) > 1 and USUAL_NAME in found:
        found = [USUAL_NAME]
    if len(found) != 1:
        shapes = ", ".join(str(list(child.weight.shape)) for child in linears.values())
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(module).__name__}) has {len(found)} unbiased linear layers of shape "
            f"{list(wanted)} to expand its latent with, expected 1 (its linear layers: {shapes})"
        )
    return found[0]


def split_up_projection(module: torch.nn.Module, layer: LayerShape, mla: MLAShape) -> tuple[torch.Tensor, torch.Tensor]:
    """w_uk [heads, nope, lora] and w_uv [heads, v, lora] of the layer's heads: views of the module's own up-projection."""
    linear: torch.nn.Linear = module.get_submodule(find_up_projection(module, layer, mla))  # type: ignore[assignment]
    width = mla.qk_nope_head_dim + mla.v_head_dim
    weight = linear.weight.detach().view(layer.num_heads, width, mla.kv_lora_rank)
    return weight[:, : mla.qk_nope_head_dim], weight[:, mla.qk_nope_head_dim :]
