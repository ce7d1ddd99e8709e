"""Where a cache keeps what it holds of a token, and how it is read: lanes, scales among them, rotary lanes.

A record lies in one piece, cache_row bytes after the last, or PIECE bytes of it do, and its scales lie behind those of all its
page's tokens; cache_row is a page's bytes then. With TILE_TOKENS above 0 pieces are interleaved, TILE_BYTES of each in turn.
"""

import triton
import triton.language as tl

from .fp8 import decode_fp8, fp8_unit
from .softmax import load_rows


@triton.jit
def find_lanes(
    cache, page, offset, cache_row, page_stride, PIECE: tl.constexpr, TILE_TOKENS: tl.constexpr, TILE_BYTES: tl.constexpr
):
    """The address of a token's first lane; page int64."""
    if PIECE == 0:
        return cache + (page * page_stride + offset) * cache_row
    if TILE_TOKENS > 0:
        first = offset // TILE_TOKENS * TILE_TOKENS
        return cache + page * cache_row + first * PIECE + offset % TILE_TOKENS * TILE_BYTES
    return cache + page * cache_row + offset * PIECE


@triton.jit
def find_scales(
    cache, page, offset, cache_row, page_stride, PIECE: tl.constexpr, SCALE_AT: tl.constexpr, SCALE_ROW: tl.constexpr
):
    """The address of a token's first scale; page int64."""
    if PIECE == 0:
        return cache + (page * page_stride + offset) * cache_row + SCALE_AT
    return cache + page * cache_row + SCALE_AT + offset * SCALE_ROW


@triton.jit
def spread_lanes(lanes, TILE_TOKENS: tl.constexpr, TILE_BYTES: tl.constexpr):
    """How many bytes after a token's first lane its others are."""
    if TILE_TOKENS > 0:
        return lanes // TILE_BYTES * (TILE_TOKENS * TILE_BYTES) + lanes % TILE_BYTES
    return lanes


@triton.jit
def load_lanes(starts, is_there, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr, kind: tl.constexpr):
    """A tile [rows, BLOCK] of stored elements, or of a type for products from bytes, over fp8_unit; zeros for what is absent."""
    tile = load_rows(starts, is_there, columns, WIDTH, BLOCK)
    if FP8 > 0:
        tile = decode_fp8(tile, FP8).to(kind)
    return tile


@triton.jit
def load_scales(at, is_there, IS_ALIGNED: tl.constexpr):
    """fp32 scales at addresses of bytes, zeros for absent ones."""
    if IS_ALIGNED:
        return tl.load(at.to(tl.pointer_type(tl.float32)), mask=is_there, other=0.0)
    bits = tl.load(at, mask=is_there, other=0).to(tl.uint32)
    for byte in tl.static_range(1, 4):
        bits |= tl.load(at + byte, mask=is_there, other=0).to(tl.uint32) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_scale_bytes(at, is_there):
    """Scales that are powers of two, each its exponent in a byte; zeros for absent ones, NaN for the byte 255."""
    exponent = tl.load(at, mask=is_there, other=127).to(tl.uint32)
    # The power that byte 0 stands for is no normal number.
    bits = tl.where(exponent == 0, 4194304, exponent << 23)
    bits = tl.where(exponent == 255, 2143289344, bits).to(tl.uint32)
    return tl.where(is_there, bits.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def load_mixed(
    lanes_at,
    scales_at,
    is_there,
    first,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    SHARE: tl.constexpr,
    PLAIN_AT: tl.constexpr,
    HAS_LANES: tl.constexpr,
    HAS_PLAIN: tl.constexpr,
    FP8: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    kind: tl.constexpr,
):
    """A tile [rows, BLOCK] of a record's values from column `first` on, a multiple of BLOCK, zeros for what is absent.

    LANES of them are bytes with a scale in a byte for SHARE of them, the others bf16 behind those: HAS_LANES and HAS_PLAIN say
    which the tile may have. e4m3 times a power of two is exact in every type that attention has.
    """
    columns = first + tl.arange(0, BLOCK)
    tile = tl.zeros([is_there.shape[0], BLOCK], tl.float32)
    if HAS_LANES:
        codes = tl.load(lanes_at[:, None] + columns[None, :], mask=is_there[:, None] & (columns < LANES)[None, :], other=0)
        SHARED: tl.constexpr = SHARE if SHARE < BLOCK else BLOCK
        numbers = first // SHARE + tl.arange(0, BLOCK // SHARED)
        is_scale = is_there[:, None] & (numbers * SHARE < LANES)[None, :]
        scales = load_scale_bytes(scales_at[:, None] + numbers[None, :], is_scale) * fp8_unit(FP8)
        parts = tl.reshape(decode_fp8(codes, FP8), [is_there.shape[0], BLOCK // SHARED, SHARED])
        tile = tl.reshape(parts * scales[:, :, None], [is_there.shape[0], BLOCK])
    if HAS_PLAIN:
        is_plain = is_there[:, None] & ((columns >= LANES) & (columns < WIDTH))[None, :]
        at = lanes_at[:, None] + (PLAIN_AT + 2 * (columns - LANES))[None, :]
        if IS_ALIGNED:
            plain = tl.load(at.to(tl.pointer_type(tl.bfloat16)), mask=is_plain, other=0.0).to(tl.float32)
        else:
            low = tl.load(at, mask=is_plain, other=0).to(tl.uint32)
            high = tl.load(at + 1, mask=is_plain, other=0).to(tl.uint32)
            plain = ((low << 16) | (high << 24)).to(tl.float32, bitcast=True)
        tile = tl.where((columns < LANES)[None, :], tile, plain)
    return tile.to(kind)


@triton.jit
def store_scale(at, scale, IS_ALIGNED: tl.constexpr):
    """An fp32 scale, stored at an address of bytes."""
    if IS_ALIGNED:
        tl.store(at.to(tl.pointer_type(tl.float32)), scale)
    else:
        bits = scale.to(tl.uint32, bitcast=True)
        for byte in tl.static_range(4):
            tl.store(at + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8))


@triton.jit
def load_halves(starts, is_there, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """A tile [rows, BLOCK] of bf16 elements at the rows' addresses of bytes; zeros for what is absent."""
    if IS_ALIGNED:
        return load_rows(starts.to(tl.pointer_type(tl.bfloat16)), is_there, columns, WIDTH, BLOCK)
    mask = is_there[:, None] & (columns < WIDTH)[None, :]
    at = starts[:, None] + 2 * columns[None, :]
    bits = tl.load(at, mask=mask, other=0).to(tl.uint16) | (tl.load(at + 1, mask=mask, other=0).to(tl.uint16) << 8)
    return bits.to(tl.bfloat16, bitcast=True)


@triton.jit
def store_halves(at, values, is_there, IS_ALIGNED: tl.constexpr):
    """Elements in bf16, stored one after the other from an address of bytes on."""
    columns = tl.arange(0, values.shape[0])
    values = values.to(tl.bfloat16)
    if IS_ALIGNED:
        tl.store(at.to(tl.pointer_type(tl.bfloat16)) + columns, values, mask=is_there)
    else:
        bits = values.to(tl.uint16, bitcast=True)
        tl.store(at + 2 * columns, (bits & 255).to(tl.uint8), mask=is_there)
        tl.store(at + 2 * columns + 1, (bits >> 8).to(tl.uint8), mask=is_there)


@triton.jit
def load_rest(
    keys,
    is_there,
    columns,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
    PLAIN_AT: tl.constexpr,
    FP8: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    kind: tl.constexpr,
):
    """The elements behind the main ones, for products: stored like those, or as bf16 from PLAIN_AT bytes on where it is not 0."""
    if PLAIN_AT > 0:
        return load_halves(keys + PLAIN_AT, is_there, columns, REST, BLOCK, IS_ALIGNED).to(kind)
    return load_lanes(keys + MAIN, is_there, columns, REST, BLOCK, FP8, kind)


@triton.jit
def load_factor(scales, SCALES: tl.constexpr, head, SECOND: tl.constexpr):
    """A scale from outside: the only one (SCALES 1), a part's (2) or a part's head's (3); SECOND above 0 for the second part."""
    if SCALES == 1:
        return tl.load(scales)
    if SCALES == 2:
        return tl.load(scales + (1 if SECOND > 0 else 0))
    return tl.load(scales + SECOND + head)


@triton.jit
def load_parts(first, second, column, FIRST: tl.constexpr, SECOND: tl.constexpr, is_there):
    """Columns of two parts end to end, in fp32."""
    value = tl.load(first + column, mask=is_there & (column < FIRST), other=0.0).to(tl.float32)
    if SECOND > 0:
        is_second = is_there & (column >= FIRST) & (column < FIRST + SECOND)
        other = tl.load(second + (column - FIRST), mask=is_second, other=0.0).to(tl.float32)
        value = tl.where(is_second, other, value)
    return value


@triton.jit
def store_parts(
    first,
    second,
    value,
    column,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BEGIN: tl.constexpr,
    STOP: tl.constexpr,
    is_there,
):
    """The other way round, for columns from BEGIN to before STOP."""
    if BEGIN < FIRST:
        tl.store(first + column, value, mask=is_there & (column < FIRST))
    if SECOND > 0 and STOP > FIRST:
        tl.store(second + (column - FIRST), value, mask=is_there & (column >= FIRST) & (column < FIRST + SECOND))
