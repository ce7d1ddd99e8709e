"""What a model keeps or computes beside the layers of a shape, in words."""

from __future__ import annotations


def say_notes(cross_bytes: int, dtype: str, *, has_encoder: bool) -> tuple[str, ...]:
    """Sentences on what sizes leave out: cross attention's bytes of a token in this dtype; none for a plain decoder."""
    if not cross_bytes:
        return ()
    encoder = "; the encoder's own self-attention keeps nothing between steps" if has_encoder else ""
    return (
        f"cross attention keeps {cross_bytes:,} bytes of keys and values ({dtype}) for each token of the encoder or image, "
        f"beside the sizes given here{encoder}; both run in the model's own code, and no plan counts them",
    )
