"""How far back a layer sees: everything, a sliding window, or its own chunk."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ConfigError
from .kinds import CHUNKED, COMPRESSED_HEAVY, COMPRESSED_SPARSE, SLIDING, is_layer_type
from .layer_view import LayerView
from .source import MISSING
from .values import as_count

_WINDOWED = (SLIDING, COMPRESSED_SPARSE, COMPRESSED_HEAVY)


def read_window(layer: LayerView) -> int | None:
    """Keys a sliding or compressed layer keeps, itself included; None where it sees everything.

    A window of 0 or null means none. ConfigError: a sliding layer and no window stated anywhere.
    """
    if layer.kind not in _WINDOWED:
        return None
    value = _shared_value(layer)
    window = None if value is MISSING else as_count(value, "sliding_window")
    if window is not None:
        extra = layer.fields.known.facts.get("window_extra")
        return window + (extra if isinstance(extra, int) else 0)
    if value is MISSING and layer.kind == SLIDING:
        raise ConfigError(
            f"layer {layer.layer_id} is of type {layer.kind} but sliding_window is unset; expected the number of keys it keeps"
        )
    return None


def _shared_value(layer: LayerView) -> object:
    fields = layer.fields
    own = next((entry.value for entry in layer._own("sliding_window")), MISSING)
    if own is not MISSING:
        return own
    turns = fields.known.windows.get(layer.kind, ())
    if turns and fields.raw("per_layer_config") in (MISSING, None):
        layer.varies = True
        if (fixed := turns[layer.turn % len(turns)]) is not None:
            return fixed
    value = fields.raw("sliding_window")
    if isinstance(value, (list, tuple)):
        layer.varies = True
        return value[layer.layer_id % len(value)] if value else None
    if isinstance(value, Mapping) and any(is_layer_type(name) for name in value):
        return value.get(layer.kind)
    return fields.raw("window_size") if value is MISSING else value


def read_chunk(layer: LayerView) -> int | None:
    """Tokens per attention chunk of a chunked layer, else None. ConfigError: a chunked layer without a chunk size."""
    if layer.kind != CHUNKED:
        return None
    chunk = layer.count("attention_chunk_size")
    if chunk is None:
        raise ConfigError(
            f"layer {layer.layer_id} is of type {layer.kind} but attention_chunk_size is unset; expected a number of tokens"
        )
    return chunk
