"""Kernels that do one thing with short floats: a cast, and a product of two tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def cast_all(source, target, count, block: tl.constexpr):
    at = tl.arange(0, block)
    value = tl.load(source + at, mask=at < count)
    tl.store(target + at, value.to(target.dtype.element_ty), mask=at < count)


@triton.jit
def multiply_tiles(a, b, c, size: tl.constexpr):
    line = tl.arange(0, size)
    at = line[:, None] * size + line[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), tl.zeros([size, size], tl.float32), input_precision="ieee"))


@triton.jit
def operate_all(a, b, sums, products, opposites, larger, is_less, count, block: tl.constexpr):
    at = tl.arange(0, block)
    left, right = tl.load(a + at, mask=at < count), tl.load(b + at, mask=at < count)
    tl.store(sums + at, left + right, mask=at < count)
    tl.store(products + at, left * right, mask=at < count)
    tl.store(opposites + at, -left, mask=at < count)
    tl.store(larger + at, tl.maximum(left, right), mask=at < count)
    tl.store(is_less + at, left < right, mask=at < count)


def convert(source: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """The values cast one by one in a kernel."""
    target = torch.empty(source.shape, dtype=kind)
    cast_all[(1,)](source, target, source.numel(), block=triton.next_power_of_2(source.numel()))
    return target


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b of two square tiles, in fp32."""
    c = torch.empty(a.shape)
    multiply_tiles[(1,)](a, b, c, size=a.shape[0])
    return c


def operate(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The sums, products, opposites and larger values of two lists of numbers, and where the first is less."""
    results = (*(torch.empty_like(a) for _ in range(4)), torch.empty(a.shape, dtype=torch.bool))
    operate_all[(1,)](a, b, *results, a.numel(), block=triton.next_power_of_2(a.numel()))
    return results
