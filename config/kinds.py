"""What a layer's type means for attention, whatever a config calls it."""

from __future__ import annotations

from .errors import ConfigError

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
SPARSE = "indexed_attention"
COMPRESSED_SPARSE = "compressed_sparse_attention"
COMPRESSED_HEAVY = "heavily_compressed_attention"
BLOCK_SPARSE = "block_sparse_attention"
CROSS = "cross_attention"
LINEAR = "linear_attention"

_MEANING = {
    FULL: (FULL, "attention", "full", "global", "global_attention", "hybrid", "attn", "*", "reference_sliding_attention"),
    SLIDING: (SLIDING, "sliding", "sliding_window", "local", "local_attention", "hybrid_sliding", "swa", "window_attention"),
    CHUNKED: (CHUNKED, "chunked"),
    SPARSE: (SPARSE, "deepseek_sparse_attention", "qwen_sparse_attention"),
    COMPRESSED_SPARSE: (COMPRESSED_SPARSE,),
    COMPRESSED_HEAVY: (COMPRESSED_HEAVY,),
    BLOCK_SPARSE: (BLOCK_SPARSE, "minimax_m3_sparse"),
    CROSS: (CROSS, "cross"),
    LINEAR: (LINEAR, "linear", "conv", "mamba", "mamba2", "moe", "mlp", "dense", "recurrent", "rglru", "kda", "gdn", "none"),
}
_CANONICAL = {name: kind for kind, names in _MEANING.items() for name in names}


def meaning(name: object, where: str) -> str:
    """The canonical type of a layer: one of this module's constants. ConfigError: an unknown type, with those that are known."""
    kind = _CANONICAL.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"{where} holds {name!r}, which is no known layer type; known: {', '.join(sorted(_CANONICAL))}")
    return kind


def is_layer_type(name: object) -> bool:
    """Whether a config may use this word for a layer's type, as in values stated by layer type."""
    return isinstance(name, str) and name in _CANONICAL
