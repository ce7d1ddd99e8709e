"""What a model keeps or computes beside the layers of a shape, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .shape import ModelShape

SIZED_IN = "bfloat16"


def say_notes(shape: ModelShape) -> tuple[str, ...]:
    """Sentences on what the sizes of this shape leave out; none for a plain decoder."""
    size = shape.cross_kv_bytes_per_token(SIZED_IN)
    if not size:
        return ()
    encoder = "; the encoder's own self-attention keeps nothing between steps" if shape.cross_attention else ""
    return (
        f"cross attention keeps {size:,} bytes of keys and values ({SIZED_IN}) for each token of the encoder or image, beside "
        f"the sizes given here{encoder}; both run in the model's own code, and no plan counts them",
    )
