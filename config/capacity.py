"""How much a sequence of a given length keeps in the cache, and the longest that fits: one function and its inverse."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InputError
from .layer_shape import LayerShape
from .sizes import attention_row_bytes, kv_heads_on_rank

UNBOUNDED = 2**48
"""Tokens that no memory holds unless every layer keeps only a window."""


def model_layout(layers: Sequence[LayerShape], layer: LayerShape, kv_layout: str) -> str:
    """What a layer takes where its model is asked for a layout: that, or "auto" where only other kinds of layers have it."""
    kv_layout = layer.resolve_layout(kv_layout)
    if kv_layout == "auto" or kv_layout in layer.kv_layouts or not any(kv_layout in other.kv_layouts for other in layers):
        return kv_layout
    return "auto"


def layer_bytes(layer: LayerShape, length: int, kv_layout: str, dtype: object, tp: int) -> int:
    """Bytes that one layer keeps of a sequence: the rows of its window, chunk or whole length, compressed entries, index keys."""
    kept = min(length, layer.window or length, layer.chunk or length)
    entries = length // layer.compress_ratio if layer.compress_ratio else 0
    rows = kept + (entries if layer.owns_entries else 0)
    keys = length // layer.tokens_per_index_key
    return rows * layer.kv_bytes_per_token(kv_layout, dtype, tp) + keys * layer.index_bytes_per_token(kv_layout, dtype)


def kv_bytes(layers: Sequence[LayerShape], length: int, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1) -> int:
    """Bytes that a sequence of this many tokens keeps on one rank over all layers, index keys included."""
    if not isinstance(length, int) or length < 0:
        raise InputError(f"length is {length!r}; expected a number of tokens")
    return sum(layer_bytes(layer, length, model_layout(layers, layer, kv_layout), dtype, tp) for layer in layers)


def max_tokens(
    layers: Sequence[LayerShape],
    memory_bytes: int,
    kv_layout: str = "auto",
    dtype: object = "bfloat16",
    tp: int = 1,
    num_seqs: int = 1,
) -> int | None:
    """The longest length that num_seqs sequences can all have in this memory; None where no length is too long."""
    if not isinstance(num_seqs, int) or num_seqs < 1:
        raise InputError(f"num_seqs is {num_seqs!r}; expected at least 1")
    if not isinstance(memory_bytes, int) or isinstance(memory_bytes, bool):
        raise InputError(f"memory_bytes is {memory_bytes!r}; expected a whole number of bytes")
    budget = memory_bytes // num_seqs
    if kv_bytes(layers, UNBOUNDED, kv_layout, dtype, tp) <= budget:
        return None
    fits, too_long = 0, UNBOUNDED
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if kv_bytes(layers, middle, kv_layout, dtype, tp) <= budget:
            fits = middle
        else:
            too_long = middle
    return fits


def cross_kv_bytes_per_token(layers: Sequence[LayerShape], dtype: object, tp: int, *, has_encoder: bool) -> int:
    """Bytes of one encoder token's keys and values over the cross layers, and over all that attend where there is an encoder."""
    crossing = [layer for layer in layers if layer.kind == "cross" or (has_encoder and layer.kind == "attention")]
    return sum(
        attention_row_bytes(kv_heads_on_rank(layer.num_kv_heads, tp), layer.head_dim, layer.v_head_dim, dtype)
        for layer in crossing
    )
