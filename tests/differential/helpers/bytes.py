"""Quantised numbers from the definitions of their formats: e4m3 codes, bf16, scales, and the bytes of whole records."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from functools import cache

import numpy as np

LARGEST = {"e4m3fn": 448.0, "e4m3fnuz": 224.0}


def code_value(code: int, variant: str) -> float:
    """What a byte stands for: sign, four bits of exponent, three of mantissa; fnuz has another bias, one NaN and no -0."""
    is_fnuz = variant == "e4m3fnuz"
    if (code == 0x80 and is_fnuz) or (code & 0x7F == 0x7F and not is_fnuz):
        return math.nan
    bias, exponent, mantissa = 8 if is_fnuz else 7, code >> 3 & 15, code & 7
    size = math.ldexp(mantissa, -2 - bias) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 3 - bias)
    return math.copysign(size, -1.0 if code & 0x80 else 1.0)


@cache
def codes_by_value(variant: str) -> list[tuple[float, int]]:
    """Every positive number that has a code, in order, with the code."""
    return sorted((code_value(code, variant), code) for code in range(128) if not math.isnan(code_value(code, variant)))


def encode(number: float, variant: str) -> int:
    """The nearest code, the even one of two as near, of a number held within what scaling aims at."""
    if math.isnan(number):
        return 0x80 if variant == "e4m3fnuz" else 0x7F
    size, codes = min(abs(number), LARGEST[variant]), codes_by_value(variant)
    above = bisect_left(codes, (size, 0))
    # Differences of neighbouring codes and an fp32 number are exact in Python's floats.
    near = codes[max(0, above - 1) : above + 1]
    _, code = min(near, key=lambda each: (abs(each[0] - size), each[1] & 1))
    is_negative = math.copysign(1.0, number) < 0 and not (variant == "e4m3fnuz" and code == 0)
    return code | 0x80 if is_negative else code


def bf16(number: float) -> bytes:
    """A finite number's two bytes, rounded to nearest, halves to even."""
    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def round_to_bf16(number: float) -> float:
    """The number that those bytes stand for."""
    return float(struct.unpack("<f", b"\0\0" + bf16(number))[0])


def divide(number: float, by: float) -> float:
    """An fp32 quotient."""
    return float(np.float32(number) / np.float32(by))


def plain_scale(block: list[float], variant: str, floor: float) -> float:
    """fp32: what brings the greatest magnitude to the greatest code; no less than the smallest normal number."""
    amax = max([np.float32(floor), *(np.float32(abs(number)) for number in block if math.isfinite(number))])
    return float(max(amax / np.float32(LARGEST[variant]), np.float32(2.0**-126)))


def scale_exponent(block: list[float], variant: str, floor: float) -> int:
    """The least e with 2**e at or above the plain scale, by trying."""
    scale = plain_scale(block, variant, floor)
    return next(e for e in range(-126, 128) if 2.0**e >= scale)


def quantise(block: list[float], scale: float, variant: str) -> bytes:
    """A block's codes."""
    return bytes(encode(divide(number, scale), variant) for number in block)


def blocks_of(lanes: list[float], size: int) -> list[list[float]]:
    """Runs of lanes that share a scale."""
    return [lanes[start : start + size] for start in range(0, len(lanes), size)]


def fp8_ds_mla(latent: list[float], rope: list[float], variant: str) -> tuple[bytes, ...]:
    """One record: codes of the latent, an fp32 scale per 128 of them, the rotary part in bf16."""
    blocks = blocks_of(latent, 128)
    scales = [plain_scale(block, variant, 0.0) for block in blocks]
    codes = b"".join(quantise(block, scale, variant) for block, scale in zip(blocks, scales, strict=True))
    return (codes + struct.pack(f"<{len(scales)}f", *scales) + b"".join(map(bf16, rope)),)


def indexer_fp8(key: list[float], variant: str) -> tuple[bytes, ...]:
    """A key's codes, and apart from them its fp32 scale per 128, of magnitudes from 1e-4 on."""
    blocks = blocks_of(key, 128)
    scales = [plain_scale(block, variant, 1e-4) for block in blocks]
    codes = b"".join(quantise(block, scale, variant) for block, scale in zip(blocks, scales, strict=True))
    return codes, struct.pack(f"<{len(scales)}f", *scales)


def compressed(row: list[float], rope_lanes: int, variant: str) -> tuple[bytes, ...]:
    """Codes of values rounded to bf16, rotary lanes in bf16; apart from them an exponent byte per 64 values, and zeros to 8."""
    values, rope = row[: len(row) - rope_lanes], row[len(row) - rope_lanes :]
    blocks = blocks_of([round_to_bf16(number) for number in values], 64)
    exponents = [scale_exponent(block, variant, 1e-4) for block in blocks]
    codes = b"".join(quantise(block, 2.0**e, variant) for block, e in zip(blocks, exponents, strict=True))
    scales = bytes(min(max(e + 127, 0), 254) for e in exponents)
    return codes + b"".join(map(bf16, rope)), scales.ljust(8, b"\0")
