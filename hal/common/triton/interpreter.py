"""Triton's interpreter, made to compute what the hardware does with bfloat16 and fp8."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@cache
def repair_interpreter() -> None:
    """Let kernels that this process interprets multiply short floats by value, and round to them to nearest, ties to even.

    Triton 3.9's interpreter keeps bfloat16 and fp8 as their bits: `tl.dot` multiplies those of bfloat16, a cast cuts bfloat16
    off, and one to fp8 loses the carry. ImportError where triton is not installed.
    """
    import torch
    from triton import language
    from triton.runtime import interpreter

    builder, make_handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    multiply, cast, convert = builder.create_dot, builder.cast_impl, builder.create_fp_to_fp
    short = {
        language.bfloat16: torch.bfloat16,
        language.float8e4nv: torch.float8_e4m3fn,
        language.float8e4b8: torch.float8_e4m3fnuz,
        language.float8e5: torch.float8_e5m2,
        language.float8e5b16: torch.float8_e5m2fnuz,
    }

    def widen(handle: Any) -> Any:
        kind = short.get(handle.dtype.scalar)
        if kind is None:
            return handle
        return make_handle(_as_tensor(handle.data).view(kind).float().numpy(), language.float32)

    def shorten(handle: Any, scalar: Any) -> Any:
        kind = short[scalar]
        bits = torch.uint16 if kind is torch.bfloat16 else torch.uint8
        return make_handle(_as_tensor(widen(handle).data).to(kind).view(bits).numpy(), scalar)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widen(a), widen(b), *rest)

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if to.scalar == source.dtype.scalar:
            return source
        return shorten(source, to.scalar) if to.scalar in short else cast(self, widen(source), to)

    def create_fp_to_fp(self: Any, source: Any, to: Any, rounding: Any) -> Any:
        cuts_off = rounding is not None and rounding != interpreter._ir.ROUNDING_MODE.RTNE
        is_known = {to.scalar, source.dtype.scalar} & short.keys()
        return convert(self, source, to, rounding) if cuts_off or not is_known else cast_impl(self, source, to)

    builder.create_dot, builder.cast_impl, builder.create_fp_to_fp = create_dot, cast_impl, create_fp_to_fp


def _as_tensor(data: Any) -> torch.Tensor:
    """The array as a tensor, which needs it dense and writable."""
    import numpy
    import torch

    return torch.from_numpy(numpy.require(data, requirements=["C", "W"]))
