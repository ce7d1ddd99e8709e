"""MLA modules: keep keys and values compressed, and hand the up-projections to hal."""

from __future__ import annotations

import torch

from hal.config import LayerShape, MLAShape

from .errors import UnsupportedModelError


def keep_compressed(kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent [1, 1, tokens, lora] and rotary key [1, 1, tokens, rope] as they came, in place of a module's expand_kv."""
    return kv_nope, k_rot


def patch_expand(module: torch.nn.Module) -> None:
    """Make one attention module pass its latent on instead of expanding it; its class stays as it is."""
    module.expand_kv = keep_compressed  # type: ignore[assignment]


def split_up_projection(module: torch.nn.Module, layer: LayerShape, mla: MLAShape) -> tuple[torch.Tensor, torch.Tensor]:
    """w_uk [heads, nope, lora] and w_uv [heads, v, lora]: views of the module's own up-projection, found by its widths.

    UnsupportedModelError if no linear layer, or more than one, has the widths that the config gives.
    """
    width = mla.qk_nope_head_dim + mla.v_head_dim
    wanted = (layer.num_heads * width, mla.kv_lora_rank)
    linears = [child for child in module.children() if isinstance(child, torch.nn.Linear)]
    found = [child for child in linears if tuple(child.weight.shape) == wanted and child.bias is None]
    named = getattr(module, "kv_b_proj", None)
    # Query and key projections can have the same widths as the up-projection; the name decides only between equals.
    if len(found) > 1 and any(child is named for child in found):
        found = [child for child in found if child is named]
    if len(found) != 1:
        shapes = ", ".join(str(list(child.weight.shape)) for child in linears)
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(module).__name__}) has {len(found)} unbiased linear layers of shape "
            f"{list(wanted)} to expand its latent with, expected 1 (its linear layers: {shapes})"
        )
    weight = found[0].weight.detach().view(layer.num_heads, width, mla.kv_lora_rank)
    return weight[:, : mla.qk_nope_head_dim], weight[:, mla.qk_nope_head_dim :]
