"""Item 8: fp8 numbers and their scales, against trying every code."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hal.common.contract.layouts import compressed_layout, fp8_ds_mla_layout, index_fp8_layout
from hal.common.contract.layouts.codecs import encode as pack_codes

from .helpers import bytes as oracle
from .helpers.targets import BOUNDED

NUMBERS = st.floats(-500, 500, width=32) | st.floats(-0.0625, 0.0625, width=32)
VARIANTS = pytest.mark.parametrize("variant", ["e4m3fn", "e4m3fnuz"])


def halfway(variant: str) -> list[float]:
    """The numbers between neighbouring codes, and their nearest fp32 neighbours."""
    codes = [value for value, _ in oracle.codes_by_value(variant)]
    middles = [(low + high) / 2 for low, high in pairwise(codes)]
    bits = [struct.unpack("<I", struct.pack("<f", middle))[0] for middle in middles]
    near = [struct.unpack("<f", struct.pack("<I", each + step))[0] for each in bits for step in (-1, 0, 1)]
    return [*codes, *near]


@VARIANTS
def test_every_byte_stands_for_what_the_format_says(variant: str) -> None:
    found = torch.arange(256, dtype=torch.uint8).view(getattr(torch, f"float8_{variant}")).float().tolist()
    for code, value in enumerate(found):
        expected = oracle.code_value(code, variant)
        assert str(value) == str(expected), code


@VARIANTS
def test_ties_and_their_neighbours_get_the_codes_that_trying_all_finds(variant: str) -> None:
    numbers = [sign * number for number in halfway(variant) for sign in (1.0, -1.0)]
    numbers += [math.nan, math.inf, -math.inf, 449.0, 225.0, -1e30]
    codes = pack_codes(torch.tensor(numbers), variant).view(torch.uint8).tolist()
    assert codes == [oracle.encode(number, variant) for number in numbers]


@BOUNDED
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=12), data=st.data())
def test_any_numbers_get_the_codes_that_trying_all_finds(numbers: list[float], data) -> None:
    variant = data.draw(st.sampled_from(["e4m3fn", "e4m3fnuz"]))
    codes = pack_codes(torch.tensor(numbers), variant).view(torch.uint8).tolist()
    assert codes == [oracle.encode(number, variant) for number in numbers]


# Around powers of two times the largest code, where a rounded-up scale changes.
MAGNITUDES = st.builds(
    lambda largest, power, nudge: largest * 2.0**power * (1 + nudge * 2.0**-23),
    st.sampled_from([448.0, 224.0, 1.0, 1e-4]),
    st.integers(-40, 40),
    st.integers(-2, 2),
)


@BOUNDED
@given(amax=MAGNITUDES | st.just(0.0), data=st.data())
def test_scales_keep_their_floors_and_exponents(amax: float, data) -> None:
    variant = data.draw(st.sampled_from(["e4m3fn", "e4m3fnuz"]))
    lanes = torch.zeros(1, 128)
    lanes[0, 3] = -amax
    amax = lanes[0, 3].abs().item()
    no_rope = torch.zeros(1, 0)
    plain = [
        (fp8_ds_mla_layout(128, 0, variant).pack((lanes, no_rope)), 0.0),
        (index_fp8_layout(128, variant).pack((lanes,)), 1e-4),
    ]
    for record, floor in plain:
        stored = struct.unpack("<f", bytes(record[0, 128:132].tolist()))[0]
        assert stored == oracle.plain_scale([amax], variant, floor)
    rounded = [
        (fp8_ds_mla_layout(128, 0, variant, power_of_two_scales=True).pack((lanes, no_rope)), 0.0),
        (index_fp8_layout(128, variant, power_of_two_scales=True).pack((lanes,)), 1e-4),
    ]
    for record, floor in rounded:
        stored = struct.unpack("<f", bytes(record[0, 128:132].tolist()))[0]
        assert stored == 2.0 ** oracle.scale_exponent([amax], variant, floor)
    record = compressed_layout(128, 64, variant).pack((lanes,))
    exponent = oracle.scale_exponent([oracle.round_to_bf16(amax)], variant, 1e-4)
    assert record[0, 64 + 128].item() == min(max(exponent + 127, 0), 254)


@VARIANTS
def test_the_largest_scale_byte_never_means_nan(variant: str) -> None:
    record = compressed_layout(128, 64, variant).pack((torch.full((1, 128), 3.3e38),))
    assert record[0, 192] < 255
    (values,) = compressed_layout(128, 64, variant).unpack(record)
    assert not values.isnan().any()
