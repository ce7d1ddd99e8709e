"""Which layers add a learned sink logit to the softmax denominator."""

from __future__ import annotations

from .fields import Fields
from .windows import SLIDING


def has_sink(fields: Fields, kind: str) -> bool:
    """Whether a layer of this type has sinks."""
    specific = "add_swa_attention_sink_bias" if kind in SLIDING else "add_full_attention_sink_bias"
    return bool(fields.flag(specific) or fields.flag("learnable_sink") or fields.flag("attention_sink"))
