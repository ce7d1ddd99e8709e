"""Every quantised record to the byte, from values whose bytes can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hal.common.contract.layouts import (
    Layout,
    attention_fp8_layout,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    latent_fp8_layout,
)

# 1 / 448 in fp32: 2**-9 * 1.142857, mantissa 0x124925.
ONE_448TH = "2549123b"
# 0.0001 in fp32 (0x38d1b717) / 448: 2**-23 * 1.87245710, mantissa 0x6facad.
FLOOR_448TH = "adac6f34"
# 2**-126, the smallest normal fp32.
SMALLEST = "00008000"


def lanes(count: int, *values: float) -> torch.Tensor:
    """The values and then zeros, [1, count]."""
    return torch.tensor([[*values, *[0.0] * (count - len(values))]])


def packed(layout: Layout, *parts: torch.Tensor, scale: torch.Tensor | None = None) -> bytes:
    return bytes(layout.pack(parts, scale).view(torch.uint8)[0].tolist())


def test_an_fp8_ds_mla_row_is_its_record_to_the_byte() -> None:
    latent = torch.cat(
        [
            # The scale is 1; 17 and 19 lie halfway between codes, 2**-10 halfway to the smallest one.
            lanes(128, 448.0, 1.0, -448.0, 17.0, 19.0, 2.0**-10, 3 * 2.0**-10, -0.0),
            lanes(128, 1.0, -896.0),
            lanes(128),
            lanes(128, 1.0),
        ],
        dim=1,
    )
    # 1 + 2**-8 and 1 + 3 * 2**-8 lie halfway between bf16 values.
    rope = lanes(64, 1.0, -2.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8)
    record = packed(fp8_ds_mla_layout(512, 64), latent, rope)
    assert len(record) == 656
    assert record[:9].hex() == "7e38fe585a00028000"
    assert record[128:131].hex() == "30fe00"
    assert record[256:384] == bytes(128)
    assert record[384:386].hex() == "7e00"
    assert record[512:528].hex() == "0000803f" + "00000040" + SMALLEST + ONE_448TH
    assert record[528:538].hex() == "803f00c0803f823f0000"


def test_an_fp8_ds_mla_record_of_other_widths_and_of_power_of_two_scales() -> None:
    short = packed(fp8_ds_mla_layout(130, 2), lanes(130, *[448.0] * 129, 896.0), lanes(2, 1.0, 0.0))
    assert len(short) == 130 + 2 * 4 + 2 * 2
    assert short[128:].hex() == "767e" + "0000803f" + "00000040" + "803f0000"
    rounded = packed(fp8_ds_mla_layout(128, 0, power_of_two_scales=True), lanes(128, 1.0), lanes(0))
    assert rounded[0] == 0x78
    assert rounded[128:].hex() == "0000803b"


def test_an_fnuz_record_has_other_bits_and_the_other_maximum() -> None:
    record = packed(fp8_ds_mla_layout(128, 0, "e4m3fnuz"), lanes(128, 224.0, 1.0, -0.0, -(2.0**-12), math.nan, -1.0), lanes(0))
    assert record[:6].hex() == "7e40000080c0"
    assert record[128:].hex() == "0000803f"


def test_an_index_key_and_its_floor() -> None:
    layout = index_fp8_layout(128)
    assert packed(layout, lanes(128, 1.0, -0.5))[:2].hex() == "7ef6"
    assert packed(layout, lanes(128, 1.0, -0.5))[128:].hex() == ONE_448TH
    assert packed(layout, lanes(128))[128:].hex() == FLOOR_448TH
    assert packed(layout, lanes(128, 2.0**-30))[128:].hex() == FLOOR_448TH
    rounded = index_fp8_layout(128, power_of_two_scales=True)
    # 2**-8 is the first power of two at or above 1 / 448, 2**-22 the first at or above the floor's.
    assert packed(rounded, lanes(128, 1.0)).hex() == "78" + "00" * 127 + "0000803b"
    assert packed(rounded, lanes(128))[128:].hex() == "00008034"
    assert packed(rounded, lanes(128, 448.0))[128:].hex() == "0000803f"
    assert packed(rounded, lanes(128, 449.0))[128:].hex() == "00000040"


def test_a_compressed_row_is_its_record_to_the_byte() -> None:
    blocks = [
        lanes(64, 448.0, -1.0),
        # bf16 has a step of 2 here: 449 is rounded to 448, 451 to 452.
        lanes(64, 449.0),
        lanes(64, 451.0),
        lanes(64),
        lanes(64, 1.0, math.inf, -math.inf),
        lanes(64, 1.0, math.nan),
        lanes(64, 3e38),
    ]
    record = packed(compressed_layout(512, 64), torch.cat([*blocks, lanes(64, 1.0, -2.0)], dim=1))
    assert len(record) == 584
    assert [record[64 * block : 64 * block + 3].hex() for block in range(7)] == [
        "7eb800",
        "7e0000",
        "760000",
        "000000",
        "787efe",
        "787f00",
        "760000",
    ]
    assert record[448:454].hex() == "803f00c00000"
    assert list(record[576:]) == [127, 127, 128, 105, 119, 119, 247, 0]


def test_a_compressed_fnuz_row_is_its_record_to_the_byte() -> None:
    record = packed(compressed_layout(128, 64, "e4m3fnuz"), lanes(128, 224.0, -1.0, 225.0))
    assert len(record) == 64 + 128 + 8
    assert record[:3].hex() == "76b876"
    assert list(record[192:]) == [128, 0, 0, 0, 0, 0, 0, 0]


def test_scales_outside_divide_and_values_saturate() -> None:
    layout = attention_fp8_layout(2, 2, 1)
    k, v = torch.tensor([[[896.0, 1e9], [-math.inf, math.nan]]]), torch.tensor([[[1.0], [-3.0]]])
    assert packed(layout, k, v, scale=torch.tensor([2.0, 0.5])).hex() == "7e7efe7f" + "40cc"
    per_head = torch.tensor([[2.0, 4.0], [0.5, 1.0]])
    assert packed(layout, k, v, scale=per_head).hex() == "7e7efe7f" + "40c4"
    latent = latent_fp8_layout(2, 1, "e4m3fnuz")
    record = packed(latent, torch.tensor([[448.0, -2.0]]), torch.tensor([[1e9]]), scale=torch.tensor([2.0]))
    assert record.hex() == "7ec07e"


@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
def test_one_bad_value_spoils_no_other(fp8: str) -> None:
    """A NaN or an infinity leaves the scale of its block to the finite values beside it."""
    for layout in (fp8_ds_mla_layout(128, 0, fp8), index_fp8_layout(128, fp8), compressed_layout(128, 64, fp8)):
        good = torch.linspace(-3, 3, 128)[None]
        bad = good.clone()
        bad[0, 5], bad[0, 9] = math.nan, math.inf
        rest = [lanes(0)] * (len(layout.parts) - 1)
        (clean, *_), (spoilt, *_) = (layout.unpack(layout.pack([part, *rest])) for part in (good, bad))
        keep = torch.ones(128, dtype=torch.bool)
        keep[[5, 9]] = False
        assert torch.equal(clean[:, keep], spoilt[:, keep])
        assert spoilt[0, 5].isnan()
        assert spoilt[0, 9].isfinite()


def test_a_scale_byte_of_255_reads_as_nan_and_zero_bytes_as_zeros() -> None:
    layout = compressed_layout(128, 64)
    records = torch.zeros(2, layout.width, dtype=torch.uint8)
    records[1, 192] = 255
    (values,) = layout.unpack(records)
    assert not values[0].any()
    assert values[1, :64].isnan().all()


@pytest.mark.parametrize(
    ("layout", "block_size", "row", "page"),
    [
        (latent_fp8_layout(512, 64), 64, 576, 64 * 576),
        (fp8_ds_mla_layout(512, 64), 64, 656, 64 * 656),
        (attention_fp8_layout(8, 128, 64), 16, 8 * 192, 16 * 8 * 192),
        (index_fp8_layout(128), 64, 132, 64 * 132),
        (compressed_layout(512, 64), 64, 584, 65 * 576),
        (compressed_layout(512, 64), 1, 584, 2 * 576),
        (compressed_layout(512, 64), 72, 584, 73 * 576),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else str(value),
)
def test_rows_and_pages_take_the_bytes_of_their_layout(layout: Layout, block_size: int, row: int, page: int) -> None:
    assert layout.bytes_per_token == row
    assert layout.page_bytes(block_size) == page
