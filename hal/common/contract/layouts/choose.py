"""Which layout caches a layer, by the layer's kind and the layout's name."""

from __future__ import annotations

from hal.common.contract.errors import LayoutError
from hal.config import LayerShape
from hal.config.sizes import kv_heads_on_rank

from .layout import Layout
from .make import (
    attention_fp8_layout,
    attention_layout,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    index_layout,
    latent_fp8_layout,
    latent_layout,
)

UNQUANTISED = ("kv", "latent", "indexer")
QUANTISED = ("latent_fp8", "fp8_ds_mla", "indexer_fp8", "compressed", "kv_fp8")


def layer_layout(layer: LayerShape, kv_layout: str, dtype: object, tp: int = 1, fp8: str | None = None) -> Layout:
    """The layout that caches a layer's KV on one rank; LayoutError for one that its kind cannot have.

    fp8: the device's e4m3 variant, e4m3fn where it has none of its own. A compressed layer's unquantised row is `latent`
    without a rotary part.
    """
    kv_layout = layer.resolve_layout(kv_layout)
    if kv_layout not in ("auto", *layer.kv_layouts):
        raise LayoutError(
            f"layer {layer.layer_id} (kind {layer.kind}) has no cache layout {kv_layout!r}; "
            f"known: {', '.join(layer.kv_layouts) or 'none'}"
        )
    name = layer.kv_layouts[0] if kv_layout == "auto" else kv_layout
    fp8 = fp8 or "e4m3fn"
    if layer.kind == "compressed":
        if name == "latent":
            return latent_layout(layer.head_dim, 0, dtype)
        return compressed_layout(layer.head_dim, layer.rope_head_dim or 0, fp8)
    if layer.mla is not None:
        lora, rope = layer.mla.kv_lora_rank, layer.mla.qk_rope_head_dim
        if name == "latent":
            return latent_layout(lora, rope, dtype)
        return latent_fp8_layout(lora, rope, fp8) if name == "latent_fp8" else fp8_ds_mla_layout(lora, rope, fp8)
    heads = kv_heads_on_rank(layer.num_kv_heads, tp)
    if name == "kv":
        return attention_layout(heads, layer.head_dim, layer.v_head_dim, dtype)
    return attention_fp8_layout(heads, layer.head_dim, layer.v_head_dim, fp8)


def layer_index_layout(layer: LayerShape, dtype: object, index_layout_name: str = "indexer", fp8: str | None = None) -> Layout:
    """The layout that caches a layer's index keys; LayoutError where it owns no indexer."""
    if layer.indexer is None or not layer.indexer.owns:
        raise LayoutError(f"layer {layer.layer_id} owns no indexer, so it caches no index keys")
    if index_layout_name == "indexer":
        return index_layout(layer.indexer.head_dim, dtype)
    if index_layout_name == "indexer_fp8":
        return index_fp8_layout(layer.indexer.head_dim, fp8 or "e4m3fn")
    raise LayoutError(f"index keys have no cache layout {index_layout_name!r}; known: indexer, indexer_fp8")
