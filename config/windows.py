"""Which tokens a layer may see: everything, a sliding window, or its own chunk."""

from __future__ import annotations

from .errors import ConfigError
from .fields import Fields, per_layer
from .values import as_count

SLIDING = frozenset({"sliding_attention", "hybrid_sliding", "sliding", "local", "local_attention"})
CHUNKED = frozenset({"chunked_attention"})
NO_ATTENTION = frozenset(
    {"linear_attention", "conv", "mamba", "mamba2", "moe", "mlp", "recurrent", "rglru", "linear", "none"}
)


def read_layer_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """Each layer's type by transformers' names. ConfigError: a list whose length is not the number of layers."""
    listed = fields.sequence("layer_types")
    if listed is None:
        return _derived_types(fields, num_layers)
    if len(listed) != num_layers:
        raise ConfigError(f"layer_types has {len(listed)} entries, expected {num_layers}, one per layer")
    if not all(isinstance(kind, str) for kind in listed):
        raise ConfigError(f"layer_types holds {listed!r}, expected names such as 'full_attention'")
    return tuple(str(kind) for kind in listed)


def _derived_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    if fields.flag("use_sliding_window") is False or fields.raw("sliding_window") in (None, 0):
        return ("full_attention",) * num_layers
    if not fields.count("sliding_window"):
        return ("full_attention",) * num_layers
    first = fields.count("max_window_layers") or 0
    return tuple("sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers))


def read_window(fields: Fields, layer_id: int, kind: str) -> int | None:
    """Keys a sliding layer keeps, itself included; None where it sees everything. ConfigError: a sliding layer without a window."""
    if kind not in SLIDING or fields.flag("use_sliding_window") is False:
        return None
    window = as_count(per_layer(fields.raw("sliding_window") or None, layer_id, kind, "sliding_window"), "sliding_window")
    if window is None:
        raise ConfigError(f"layer {layer_id} is {kind!r} but sliding_window is unset; expected the number of keys it keeps")
    return window


def read_chunk(fields: Fields, layer_id: int, kind: str) -> int | None:
    """Tokens per attention chunk of a chunked layer, else None. ConfigError: a chunked layer without a chunk size."""
    if kind not in CHUNKED:
        return None
    chunk = fields.count("attention_chunk_size")
    if chunk is None:
        raise ConfigError(f"layer {layer_id} is {kind!r} but attention_chunk_size is unset; expected a number of tokens")
    return chunk
