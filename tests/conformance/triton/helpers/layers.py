"""Every arch that kernels are compiled for, and layers of well-known widths."""

from __future__ import annotations

from hal.common.backends.registry import platforms
from hal.config import IndexerShape, LayerShape, MLAShape

ARCHS = [(platform.name, arch.name) for platform in platforms().values() if platform.name != "cpu" for arch in platform.archs()]


def sparse_layer(heads: int = 128) -> LayerShape:
    """A layer of DeepSeek-V3.2's widths."""
    mla = MLAShape(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    indexer = IndexerShape(topk=2048, num_heads=64, head_dim=128)
    widths = {"num_heads": heads, "num_kv_heads": heads, "head_dim": 192, "v_head_dim": 128, "softmax_scale": 0.1}
    return LayerShape(layer_id=0, kind="mla", mla=mla, indexer=indexer, **widths)


def dense_layer(head_dim: int = 128) -> LayerShape:
    """A layer of Llama-3-8B's widths."""
    widths = {"num_heads": 32, "num_kv_heads": 8, "head_dim": head_dim, "v_head_dim": head_dim, "softmax_scale": 0.1}
    return LayerShape(layer_id=0, kind="attention", **widths)
