"""The two e4m3 encodings, byte by byte in integers: the same on every arch, whether or not it has instructions for them.

FP8 is 1 for e4m3fn and 2 for e4m3fnuz.
"""

import triton
import triton.language as tl


@triton.jit
def fp8_unit(FP8: tl.constexpr):
    """What decode_fp8's results are to be multiplied by."""
    if FP8 == 2:
        return 128.0
    return 256.0


@triton.jit
def decode_fp8(codes, FP8: tl.constexpr):
    """The values of bytes in fp32, over fp8_unit: below 2 and exact in every float type that attention has."""
    wide = codes.to(tl.int8, bitcast=True).to(tl.int16)
    # With one more bit of exponent and seven of mantissa a byte is an fp16; its sign fills both top bits.
    bits = (wide << 7) & -16385
    is_nan = (wide & 127) == 127 if FP8 == 1 else wide == -128
    bits = tl.where(is_nan, 32256, bits).to(tl.int16)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def encode_fp8(values, FP8: tl.constexpr):
    """uint8 of fp32 values, rounded to nearest even, saturated at the largest magnitude that scaling aims at; NaN stays NaN."""
    LARGEST: tl.constexpr = 224.0 if FP8 == 2 else 448.0
    BIAS: tl.constexpr = 8 if FP8 == 2 else 7
    sign = (values.to(tl.uint32, bitcast=True) >> 24) & 128
    size = tl.minimum(tl.abs(values), LARGEST)
    bits = size.to(tl.uint32, bitcast=True)
    normal = ((bits + 524287 + ((bits >> 20) & 1)) >> 20) - ((127 - BIAS) << 3)
    # Sums of this size have the last bit of the least e4m3 number, so that adding rounds to it.
    ROUNDS: tl.constexpr = 8192.0 if FP8 == 2 else 16384.0
    SUM: tl.constexpr = 1174405120 if FP8 == 2 else 1182793728
    small = (size + ROUNDS).to(tl.uint32, bitcast=True) - SUM
    LEAST_NORMAL: tl.constexpr = 0.0078125 if FP8 == 2 else 0.015625
    code = tl.where(size < LEAST_NORMAL, small, normal)
    if FP8 == 2:
        # There is no -0: its byte is NaN's.
        code = tl.where(code == 0, 0, code | sign)
    else:
        code = code | sign
    NAN: tl.constexpr = 128 if FP8 == 2 else 127
    return tl.where(values != values, NAN, code).to(tl.uint8)
