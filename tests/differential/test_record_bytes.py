"""Item 11: every layout's rows and pages to the byte, against records put together with struct.

Reading them back, and changing their variant: tests/unit/layouts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hal import Device
from hal.common.backends.registry import find_backend
from hal.common.contract.call_values import KVCache
from hal.common.contract.layouts import (
    Layout,
    attention_fp8_layout,
    attention_layout,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    index_layout,
    latent_fp8_layout,
    latent_layout,
)

from .helpers import bytes as oracle
from .helpers.targets import BOUNDED

Lanes = list[float]
ELEMENTS = {
    "float16": lambda number: struct.pack("<e", number),
    "bfloat16": oracle.bf16,
    "float32": lambda number: struct.pack("<f", number),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A layout, its record in the words of the definitions (pieces that a page keeps apart), scales that lie outside."""

    layout: Layout
    record: object
    scale: torch.Tensor | None = None

    def pieces(self, parts: list[Lanes]) -> tuple[bytes, ...]:
        """The record of one token."""
        return self.record(*parts)


def elements(dtype: str) -> object:
    """Parts end to end in one type."""
    return lambda *parts: (b"".join(ELEMENTS[dtype](number) for part in parts for number in part),)


def scaled(variant: str, *scales: float) -> object:
    """Parts end to end as codes, each part divided by its own scale."""
    return lambda *parts: (b"".join(oracle.quantise(part, scale, variant) for part, scale in zip(parts, scales, strict=True)),)


def samples() -> dict[str, Sample]:
    """Every layout of the table, quantised ones in both variants."""
    found = {}
    for dtype in ELEMENTS:
        found[f"latent_{dtype}"] = Sample(latent_layout(16, 4, dtype), elements(dtype))
        found[f"kv_{dtype}"] = Sample(attention_layout(2, 4, 3, dtype), elements(dtype))
        found[f"indexer_{dtype}"] = Sample(index_layout(8, dtype), elements(dtype))
    for variant in ("e4m3fn", "e4m3fnuz"):
        found |= {
            f"latent_{variant}": Sample(latent_fp8_layout(16, 4, variant), scaled(variant, 0.75, 0.75), torch.tensor([0.75])),
            f"kv_{variant}": Sample(attention_fp8_layout(2, 4, 3, variant), scaled(variant, 0.5, 3.0), torch.tensor([0.5, 3.0])),
            f"fp8_ds_mla_{variant}": Sample(
                fp8_ds_mla_layout(130, 4, variant), lambda latent, rope, v=variant: oracle.fp8_ds_mla(latent, rope, v)
            ),
            f"indexer_{variant}": Sample(index_fp8_layout(128, variant), lambda key, v=variant: oracle.indexer_fp8(key, v)),
            f"compressed_{variant}": Sample(
                compressed_layout(136, 4, variant), lambda row, v=variant: oracle.compressed(row, 4, v)
            ),
        }
    return found


SAMPLES = samples()
FEW = settings(BOUNDED, max_examples=8)
EVERY = pytest.mark.parametrize("name", SAMPLES)


def draw_parts(layout: Layout, tokens: int, seed: int) -> list[torch.Tensor]:
    """fp32 parts whose blocks differ in magnitude by up to 2**12, with zeros and one whole block of them."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for part in layout.parts:
        values = torch.randn(tokens, *part, generator=generator)
        values *= 2.0 ** torch.randint(-6, 6, (tokens, 1), generator=generator).reshape(tokens, *[1] * len(part))
        values[torch.rand(values.shape, generator=generator) < 0.1] = 0.0
        parts.append(values)
    parts[0][0, ..., : min(128, layout.parts[0][-1])] = 0.0
    return parts


def as_lanes(parts: list[torch.Tensor], token: int) -> list[Lanes]:
    return [part[token].flatten().tolist() for part in parts]


@EVERY
@FEW
@given(seed=st.integers(0, 2**31))
def test_a_row_is_its_record_to_the_byte(name: str, seed: int) -> None:
    sample = SAMPLES[name]
    parts = draw_parts(sample.layout, 2, seed)
    rows = sample.layout.pack(parts, sample.scale).contiguous().view(torch.uint8)
    for token in range(2):
        assert bytes(rows[token].tolist()) == b"".join(sample.pieces(as_lanes(parts, token)))


@EVERY
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_a_page_is_its_records_to_the_byte(name: str, block_size: int) -> None:
    """A page is every token's first piece, then every token's second one, then padding; a token that is not written is zeros."""
    sample, slots = SAMPLES[name], [0, 2 * block_size, 3 * block_size - 1, -1]
    layout = sample.layout
    size = layout.page_bytes(block_size)
    memory = torch.zeros(3, size, dtype=torch.uint8)
    elements_of = memory.view(getattr(torch, layout.dtype))
    storage = elements_of.as_strided((3, block_size, layout.width), (elements_of.shape[1], layout.width, 1))
    parts = draw_parts(layout, len(slots), block_size)
    backend = find_backend("cpu")(Device.from_arch("cpu"))
    backend.write_cache(KVCache(storage, layout, block_size, block_size, sample.scale), torch.tensor(slots), *parts)
    written = {slot: sample.pieces(as_lanes(parts, token)) for token, slot in enumerate(slots) if slot >= 0}
    blank = tuple(bytes(len(piece)) for piece in sample.pieces(as_lanes(parts, 0)))
    for page in range(3):
        tokens = [written.get(page * block_size + offset, blank) for offset in range(block_size)]
        expected = b"".join(b"".join(token[piece] for token in tokens) for piece in range(len(blank)))
        assert bytes(memory[page].tolist()) == expected.ljust(size, b"\0")


def test_records_of_served_sizes_take_the_known_bytes() -> None:
    assert fp8_ds_mla_layout(512, 64).bytes_per_token == 656
    assert index_fp8_layout(128).bytes_per_token == 132
    assert compressed_layout(512, 64).bytes_per_token == 584
    assert compressed_layout(512, 64).page_bytes(64) % 576 == 0
