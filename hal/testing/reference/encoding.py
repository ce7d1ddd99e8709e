"""One cached token's bytes, written and read from the definition of its layout, a value at a time."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import torch

from hal.common.contract.layouts import Layout

_BIAS = {"e4m3fn": 7, "e4m3fnuz": 8}
_LARGEST = {"e4m3fn": 448.0, "e4m3fnuz": 224.0}
_AMAX_FLOOR = {"fp8_ds_mla": 0.0, "indexer_fp8": 1e-4, "compressed": 1e-4}


def decode_fp8(code: int, fp8: str) -> float:
    """The value of an e4m3 byte: a sign, four bits of exponent, three of mantissa; e4m3fnuz has one NaN and no -0."""
    if (code & 0x7F == 0x7F) if fp8 == "e4m3fn" else (code == 0x80):
        return math.nan
    exponent, mantissa = code >> 3 & 0xF, code & 7
    bias = _BIAS[fp8]
    value = mantissa / 8 * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - bias)
    return -value if code & 0x80 else value


def encode_fp8(value: float, fp8: str) -> int:
    """The byte whose value is nearest, ties to the even one, saturated at the largest magnitude that scaling aims at."""
    if math.isnan(value):
        return 0x7F if fp8 == "e4m3fn" else 0x80
    # In ascending order from 0 to the largest.
    magnitude, known = min(abs(value), _LARGEST[fp8]), _magnitudes(fp8)
    code = bisect_left(known, magnitude)
    if code > 0:
        to_above, to_below = known[code] - magnitude, magnitude - known[code - 1]
        code -= to_below < to_above or (to_below == to_above and code & 1)
    has_sign = math.copysign(1.0, value) < 0 and (code > 0 or fp8 == "e4m3fn")
    return code | (0x80 if has_sign else 0)


@cache
def _magnitudes(fp8: str) -> tuple[float, ...]:
    """The values of the codes without a sign, NaN's left out."""
    return _every_value(fp8)[:0x7F]


@cache
def _every_value(fp8: str) -> tuple[float, ...]:
    """The values of the codes 0, 1, 2 ... 255."""
    return tuple(decode_fp8(code, fp8) for code in range(256))


def encode_token(layout: Layout, parts: Sequence[torch.Tensor], scale: torch.Tensor | None) -> bytes:
    """A token's record in a quantised layout, from its parts."""
    fp8 = str(layout.fp8)
    if scale is not None:
        factors = _outside_factors(layout, scale)
        values = torch.cat([part.float().flatten() for part in parts]) / factors
        return bytes(encode_fp8(value, fp8) for value in values.tolist())
    lanes = torch.cat([part.float().flatten() for part in parts])
    quantised = _quantised_lanes(layout)
    values, plain = lanes[:quantised], lanes[quantised:]
    if layout.name == "compressed":
        values = values.bfloat16().float()
    codes, scales = [], b""
    for block in values.split(64 if layout.name == "compressed" else 128):
        factor = _block_scale(layout, block)
        codes += [encode_fp8(value, fp8) for value in (block / factor).tolist()]
        scales += bytes([round(math.log2(factor)) + 127]) if layout.name == "compressed" else struct.pack("<f", factor)
    rope = struct.pack(f"<{plain.numel()}h", *plain.bfloat16().view(torch.int16).tolist())
    if layout.name == "compressed":
        return (bytes(codes) + rope + scales).ljust(layout.width, b"\0")
    return bytes(codes) + scales + rope


def decode_token(layout: Layout, record: bytes, scale: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The parts of a token in float64, from its record in a quantised layout."""
    fp8 = str(layout.fp8)
    if scale is not None:
        values = torch.tensor([_every_value(fp8)[code] for code in record]).double() * _outside_factors(layout, scale).double()
    else:
        values = torch.tensor(_decode_record(layout, record, fp8)).double()
    pieces = values.split(layout.widths)
    return tuple(piece.reshape(shape) for piece, shape in zip(pieces, layout.parts, strict=True))


def _decode_record(layout: Layout, record: bytes, fp8: str) -> list[float]:
    quantised = _quantised_lanes(layout)
    plain = sum(layout.widths) - quantised
    codes = record[:quantised]
    if layout.name == "compressed":
        rope = record[quantised : quantised + 2 * plain]
        stored = record[quantised + 2 * plain :]
        scales = [math.nan if byte == 255 else 2.0 ** (byte - 127) for byte in stored]
        block = 64
    else:
        block, count = 128, -(-quantised // 128)
        scales = list(struct.unpack_from(f"<{count}f", record, quantised))
        rope = record[quantised + 4 * count :]
    values = [_every_value(fp8)[code] * scales[lane // block] for lane, code in enumerate(codes)]
    # A bf16 is the upper half of an fp32.
    return values + [struct.unpack("<f", b"\0\0" + rope[at : at + 2])[0] for at in range(0, 2 * plain, 2)]


def _quantised_lanes(layout: Layout) -> int:
    """How many lanes are e4m3: all but the rotary ones."""
    if layout.name == "compressed":
        # Values and twice as many bytes of rotary lanes fill the first plane; together they are the head.
        return 2 * layout.widths[0] - layout.planes[0]
    return layout.widths[0]


def _block_scale(layout: Layout, block: torch.Tensor) -> float:
    amax = max([abs(value) for value in block.tolist() if math.isfinite(value)] + [_AMAX_FLOOR[layout.name]])
    scale = float(torch.tensor(amax, dtype=torch.float32) / _LARGEST[str(layout.fp8)])
    scale = max(scale, 2.0**-126)
    if layout.blocks is None or layout.blocks.scale_format == "float32":
        return scale
    exponent = -126
    while 2.0**exponent < scale:
        exponent += 1
    return 2.0**exponent


def _outside_factors(layout: Layout, scale: torch.Tensor) -> torch.Tensor:
    """The factor of every lane: one for all, one per part, or one per part and head."""
    scale = scale.cpu()
    if layout.name == "latent_fp8":
        return scale.expand(layout.width)
    factors = []
    for number, (heads, width) in enumerate(layout.parts):
        factors += [
            float(scale[number] if scale.dim() == 1 else scale[number, head]) for head in range(heads) for _ in range(width)
        ]
    return torch.tensor(factors)
