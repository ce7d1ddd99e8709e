"""Packing, unpacking and changing variant over any values: extremes, infinities, NaN, zeros and subnormals included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hal.common.contract.convert import convert_records
from hal.common.contract.layouts import (
    SCALING_MAX,
    Layout,
    attention_fp8_layout,
    attention_layout,
    change_variant,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    latent_fp8_layout,
)
from hal.testing import reference

BOUNDED = settings(max_examples=20, deadline=None, derandomize=True)
VARIANTS = ("e4m3fn", "e4m3fnuz")
LAYOUTS = {
    "latent_fp8": latent_fp8_layout(24, 8),
    "kv_fp8": attention_fp8_layout(2, 8, 4),
    "fp8_ds_mla": fp8_ds_mla_layout(130, 6),
    "fp8_ds_mla_powers": fp8_ds_mla_layout(130, 6, power_of_two_scales=True),
    "indexer_fp8": index_fp8_layout(40),
    "indexer_fp8_powers": index_fp8_layout(40, power_of_two_scales=True),
    "compressed": compressed_layout(80, 8),
}
EDGES = [0.0, -0.0, 1.0, 448.0, -448.0, 449.0, 464.0, 240.0, 1e-4, 1e-5, 2.0**-126, 2.0**-149, 3.4e38, -3.4e38, math.inf]
EDGES += [-math.inf, math.nan]
VALUES = st.one_of(st.sampled_from(EDGES), st.floats(width=32), st.floats(-4, 4, width=32), st.floats(-500, 500, width=32))
layouts = pytest.mark.parametrize("name", LAYOUTS)
variants = pytest.mark.parametrize("fp8", VARIANTS)


def draw_rows(data: st.DataObject, layout: Layout, elements: st.SearchStrategy[float] = VALUES) -> tuple[torch.Tensor, ...]:
    values = data.draw(arrays(np.float32, (2, sum(layout.widths)), elements=elements, fill=st.just(0.0)))
    pieces = torch.from_numpy(values).split(layout.widths, dim=1)
    return tuple(piece.unflatten(1, part) for piece, part in zip(pieces, layout.parts, strict=True))


def draw_scale(data: st.DataObject, layout: Layout) -> torch.Tensor | None:
    if not layout.scale_shapes:
        return None
    shape = data.draw(st.sampled_from(layout.scale_shapes))
    return torch.from_numpy(data.draw(arrays(np.float32, shape, elements=st.floats(2.0**-20, 2.0**20, width=32))))


@layouts
@variants
@BOUNDED
@given(data=st.data())
def test_rows_are_what_the_slow_encoder_writes(name: str, fp8: str, data: st.DataObject) -> None:
    layout = change_variant(LAYOUTS[name], fp8)
    finite = st.one_of(
        st.sampled_from([value for value in EDGES if math.isfinite(value)]),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.floats(-4, 4, width=32),
    )
    parts, scale = draw_rows(data, layout, finite), draw_scale(data, layout)
    rows = layout.pack(parts, scale).view(torch.uint8)
    for token, row in enumerate(rows):
        expected = reference.encode_token(layout, [part[token] for part in parts], scale)
        assert bytes(row.tolist()) == expected


@layouts
@variants
@BOUNDED
@given(data=st.data())
def test_values_come_back_within_half_a_step_of_their_block(name: str, fp8: str, data: st.DataObject) -> None:
    layout = change_variant(LAYOUTS[name], fp8)
    parts, scale = draw_rows(data, layout), draw_scale(data, layout)
    rows = layout.pack(parts, scale)
    back = layout.unpack(rows, scale)
    for part, found in zip(parts, back, strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(part.isnan(), found.isnan())
    for token in range(2):
        decoded = reference.decode_token(layout, bytes(rows.view(torch.uint8)[token].tolist()), scale)
        for found, wanted in zip(back, decoded, strict=True):
            torch.testing.assert_close(found[token].double(), wanted, rtol=1e-6, atol=1e-38, equal_nan=True)


@layouts
@variants
@BOUNDED
@given(data=st.data())
def test_the_error_is_that_of_the_quantisation(name: str, fp8: str, data: st.DataObject) -> None:
    layout = change_variant(LAYOUTS[name], fp8)
    parts = draw_rows(data, layout, st.floats(-100, 100, width=32))
    scale = None if not layout.scale_shapes else torch.full(layout.scale_shapes[0], 0.5)
    (values, *_), (found, *_) = parts, layout.unpack(layout.pack(parts, scale), scale)
    values, found = values.flatten(1), found.flatten(1)
    # Three bits of mantissa round to 1/16 of a value; the smallest step is 2**-9 or 2**-10 of the scale, which for a block
    # is at most twice its largest value by the scaling maximum.
    largest = 100.0 if scale is None else 0.5 * SCALING_MAX[fp8] / 2
    smallest = 2 * largest / SCALING_MAX[fp8] * 2.0**-9
    bf16 = values.abs() * 2.0**-8
    assert bool(((values - found).abs() <= values.abs() / 16 + smallest + bf16).all())


@layouts
@variants
@BOUNDED
@given(data=st.data())
def test_packing_what_was_unpacked_changes_little_or_nothing(name: str, fp8: str, data: st.DataObject) -> None:
    """Powers of two and outside scales are settled at once; an fp32 scale may move by its last bit."""
    layout = change_variant(LAYOUTS[name], fp8)
    parts, scale = draw_rows(data, layout, st.floats(-1000, 1000, width=32)), draw_scale(data, layout)
    once = layout.unpack(layout.pack(parts, scale), scale)
    twice = layout.unpack(layout.pack(once, scale), scale)
    for first, second in zip(once, twice, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=0)


@layouts
@BOUNDED
@given(data=st.data())
def test_a_change_of_variant_keeps_every_value(name: str, data: st.DataObject) -> None:
    """e4m3fn to e4m3fnuz and back: the same bits again but for -0, which the other variant lacks, and the sign of a NaN."""
    here, there = LAYOUTS[name], change_variant(LAYOUTS[name], "e4m3fnuz")
    parts = draw_rows(data, here)
    scale = None if not here.scale_shapes else torch.rand(here.scale_shapes[-1]) + 0.5
    rows = here.pack(parts, scale)
    moved = convert_records(rows, here, there)
    assert moved.dtype == getattr(torch, there.dtype)
    doubled = None if scale is None else scale * 2
    for found, wanted in zip(there.unpack(moved, doubled), here.unpack(rows, scale), strict=True):
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
        assert torch.equal(found.isnan(), wanted.isnan())
    back = convert_records(moved, there, here)
    for found, wanted in zip(here.unpack(back, scale), here.unpack(rows, scale), strict=True):
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))


@pytest.mark.parametrize(("source", "target", "factor"), [(*VARIANTS, 0.5), (*VARIANTS[::-1], 2.0)])
def test_every_code_keeps_its_value_in_the_other_variant(source: str, target: str, factor: float) -> None:
    """All 256: half or twice the value, NaN for NaN, and 224 for the two e4m3fnuz magnitudes that e4m3fn cannot hold."""
    here, there = latent_fp8_layout(256, 0, source), latent_fp8_layout(256, 0, target)
    codes = torch.arange(256, dtype=torch.uint8)[None]
    moved = convert_records(codes.view(getattr(torch, here.dtype)), here, there).view(torch.uint8)[0].tolist()
    for code, found in enumerate(moved):
        value = reference.decode_fp8(code, source)
        got = reference.decode_fp8(found, target)
        if math.isnan(value):
            assert math.isnan(got)
        elif abs(value) > 224 and source == "e4m3fnuz":
            assert got == math.copysign(448.0, value)
        else:
            assert got == value * factor


@variants
@BOUNDED
@given(data=st.data())
def test_no_scale_byte_is_ever_nan(fp8: str, data: st.DataObject) -> None:
    layout = change_variant(LAYOUTS["compressed"], fp8)
    rows = layout.pack(draw_rows(data, layout))
    scales = rows[:, layout.planes[0] :]
    assert int(scales.max()) < 255


@BOUNDED
@given(tokens=st.integers(0, 3), heads=st.integers(1, 3), width=st.integers(1, 5))
def test_plain_rows_are_their_parts(tokens: int, heads: int, width: int) -> None:
    layout = attention_layout(heads, width, 2, "float32")
    parts = (torch.randn(tokens, heads, width), torch.randn(tokens, heads, 2))
    rows = layout.pack(parts)
    assert rows.shape == (tokens, layout.width)
    for part, found in zip(parts, layout.unpack(rows), strict=True):
        assert torch.equal(part, found)


@layouts
def test_no_tokens_pack_and_unpack(name: str) -> None:
    layout = LAYOUTS[name]
    scale = None if not layout.scale_shapes else torch.ones(layout.scale_shapes[0])
    rows = layout.pack([torch.zeros(0, *part) for part in layout.parts], scale)
    assert rows.shape == (0, layout.width)
    assert [part.shape for part in layout.unpack(rows, scale)] == [(0, *part) for part in layout.parts]
