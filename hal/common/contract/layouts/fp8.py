"""The two e4m3 encodings: their names, their element types, the largest magnitude that scaling aims at."""

from __future__ import annotations

from hal.common.contract.errors import InputError

SCALING_MAX = {"e4m3fn": 448.0, "e4m3fnuz": 224.0}
"""By variant. e4m3fnuz reaches 240, and 224 has the bits of e4m3fn's 448: pages change variant without another rounding."""


def check_variant(fp8: str) -> str:
    """The variant's name; InputError for one that is none."""
    if fp8 not in SCALING_MAX:
        raise InputError(f"fp8 variant {fp8!r} is not one of {', '.join(SCALING_MAX)}")
    return fp8


def storage_dtype(fp8: str) -> str:
    """The element type of a variant, "float8_e4m3fn" or "float8_e4m3fnuz"."""
    return f"float8_{check_variant(fp8)}"
