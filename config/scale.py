"""What the scores are multiplied by before the softmax."""

from __future__ import annotations

import math

from .fields import Fields
from .values import as_number, as_text


def read_scale(fields: Fields, head_dim: int, is_mla: bool) -> float:
    """The softmax scale: a stated multiplier, else 1/sqrt of a stated scalar, else 1/sqrt(head_dim), corrected for yarn in MLA."""
    multiplier = fields.number("attention_multiplier")
    if multiplier is not None:
        return multiplier
    scalar = fields.number("query_pre_attn_scalar")
    if scalar is not None:
        return scalar**-0.5
    return head_dim**-0.5 * (_yarn_correction(fields) if is_mla else 1.0)


def _yarn_correction(fields: Fields) -> float:
    """The square of yarn's temperature over all lanes; DeepSeek-V2's rule, asked for by `mscale_all_dim`."""
    rope = fields.nested("rope_parameters") or fields.nested("rope_scaling")
    if rope is None:
        return 1.0
    kind = as_text(rope.read("rope_type") or rope.read("type") or None, "rope_type")
    if kind in (None, "default"):
        return 1.0
    mscale = as_number(rope.read("mscale_all_dim") or None, rope.describe("mscale_all_dim"))
    factor = as_number(rope.read("factor") or None, rope.describe("factor"))
    if mscale is None or factor is None or factor <= 1:
        return 1.0
    return (0.1 * mscale * math.log(factor) + 1.0) ** 2
