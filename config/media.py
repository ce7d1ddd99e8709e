"""Which tokens of a prompt stand for an image, a video or a sound."""

from __future__ import annotations

from .source import open_source
from .values import as_width

PLACEHOLDERS = (
    *(f"{medium}_token_{suffix}" for medium in ("image", "video", "audio") for suffix in ("id", "index")),
    "media_placeholder_token_id",
)
"""Root fields of image-text configs; each names a token whose embedding is replaced by an encoder's output."""


def read_media_tokens(source: object) -> dict[int, str]:
    """Token id -> the field that declares it a placeholder; empty for a text model. Takes what read_shape takes."""
    root = open_source(source)
    found: dict[int, str] = {}
    for name in PLACEHOLDERS:
        value = root.given(name)
        token = as_width(value, root.describe(name)) if isinstance(value, int) else None
        if token is not None:
            found.setdefault(token, name)
    return found
