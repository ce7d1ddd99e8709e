"""Triton's interpreter as the suites use it: short floats are multiplied by value and rounded to nearest, ties to even."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hal.testing import repair_interpreter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)

if os.environ.get("TRITON_INTERPRET") == "1":
    repair_interpreter()
    from .helpers.short_floats import convert, multiply, operate

SHORT = {
    "bfloat16": torch.bfloat16,
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2,
}
ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def values_of(kind: torch.dtype) -> torch.Tensor:
    """Every finite value of a type, in order."""
    bits = ALL_BYTES if kind.itemsize == 1 else torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    values = bits.view(kind).float()
    return values[values.isfinite()].sort().values


def hard_to_round(kind: torch.dtype) -> torch.Tensor:
    """fp32 values between neighbours of a type: halfway, where ties go to even, and a hair to either side of it."""
    values = values_of(kind)
    halfway = (values[1:].double() + values[:-1].double()).div(2).float()
    beside = [torch.nextafter(halfway, torch.full_like(halfway, end)) for end in (-torch.inf, torch.inf)]
    found = torch.cat([values, halfway, *beside])
    return found[:: max(1, found.numel() // 20000)].contiguous()


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    bits = torch.uint8 if found.dtype.itemsize == 1 else torch.int16
    return bool((found.view(bits) == wanted.view(bits)).all())


@pytest.mark.parametrize("kind", SHORT.values(), ids=SHORT)
def test_a_cast_rounds_to_nearest_even(kind: torch.dtype) -> None:
    source = hard_to_round(kind)
    assert same_bits(convert(source, kind), source.to(kind))


@pytest.mark.parametrize("kind", [kind for kind in SHORT.values() if kind.itemsize == 1], ids=list(SHORT)[1:])
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_cast_by_value(kind: torch.dtype, wide: torch.dtype) -> None:
    source = hard_to_round(kind).to(wide)
    assert same_bits(convert(source, kind), source.float().to(kind))


@pytest.mark.parametrize("kind", SHORT.values(), ids=SHORT)
def test_every_short_value_is_read_as_what_it_is(kind: torch.dtype) -> None:
    values = values_of(kind)[::7].contiguous()
    assert torch.equal(convert(values.to(kind), torch.float32), values)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_what_is_not_finite_stays_so_in_bfloat16(value: float) -> None:
    source = torch.full((4,), value)
    torch.testing.assert_close(convert(source, torch.bfloat16).float(), source, equal_nan=True)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_integers_are_cast_to_bfloat16_and_back_by_value(kind: torch.dtype) -> None:
    source = torch.tensor([0, 1, -3, 255, 257, 32769], dtype=kind)
    found = convert(source, torch.bfloat16)
    assert same_bits(found, source.to(torch.bfloat16))
    assert torch.equal(convert(found, kind), found.to(kind))


@pytest.mark.parametrize("kind", SHORT.values(), ids=SHORT)
def test_products_are_exact_and_summed_in_fp32(kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    # Few mantissa bits and one magnitude, so that the fp32 sum of exact products rounds nowhere.
    a, b = (torch.randint(-7, 8, (16, 16), generator=generator).div(4).to(kind) for _ in range(2))
    assert torch.equal(multiply(a, b), a.float() @ b.float())


def test_operators_take_bfloat16_by_value_and_round_once() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1000, generator=generator).mul(100).bfloat16() for _ in range(2))
    b[::10] = a[::10]
    for found, wanted in zip(operate(a, b), (a + b, a * b, -a, a.maximum(b), a < b), strict=True):
        assert torch.equal(found, wanted)


def test_a_kernel_of_hal_needs_no_repair_from_outside() -> None:
    """A launch that is interpreted repairs first: bfloat16 is right wherever a backend runs on tensors of the CPU."""
    program = """
import torch, hal
from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.layouts import attention_layout
ones = torch.ones(1, 16, 32).bfloat16()
device = hal.Device.from_arch("cuda:sm_90", torch_device="cpu")
backend = hal.kernels("cuda:triton", device)
cache = KVCache(ones.clone(), attention_layout(1, 16, 16, "bfloat16"), 16, 16)
starts, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
batch = PagedBatch(starts, lens, torch.zeros(1, 1, dtype=torch.int32), 1, 5)
out, lse = backend.paged_attention(ones[:, :1, :16], cache, batch, softmax_scale=0.25, need_lse=True)
assert torch.equal(out, torch.ones_like(out)), out
assert abs(float(lse) - (4 + torch.tensor(5.0).log())) < 1e-5, lse
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
