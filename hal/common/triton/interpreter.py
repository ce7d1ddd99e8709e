"""Triton's interpreter, made to compute what the hardware does with bfloat16 and fp8."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@cache
def repair_interpreter() -> None:
    """Let kernels that this process interprets compute with short floats by value, and round to them to nearest, ties to even.

    Triton 3.9's interpreter keeps bfloat16 and fp8 as their bits: `tl.dot` and every operator take those of bfloat16 for
    integers, a cast cuts bfloat16 off, and one to fp8 loses the carry. ImportError where triton is not installed.
    """
    import torch
    from triton import language
    from triton.runtime import interpreter

    builder, make_handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    multiply, cast, convert = builder.create_dot, builder.cast_impl, builder.create_fp_to_fp
    operate, change, add_product = builder.binary_op, builder.unary_op, builder.create_fma
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

    def rounded(found: Any, scalar: Any) -> Any:
        return shorten(found, scalar) if found.data.dtype.kind == "f" else make_handle(found.data, language.int1)

    def binary_op(self: Any, left: Any, right: Any, operator: Any) -> Any:
        scalar = left.dtype.scalar
        if scalar not in short:
            return operate(self, left, right, operator)
        # What compares answers with truths, which would be labelled with the type of what it compared.
        return rounded(make_handle(operator(widen(left).data, widen(right).data), language.float32), scalar)

    def unary_op(self: Any, given: Any, operator: Any) -> Any:
        scalar = given.dtype.scalar
        return rounded(change(self, widen(given), operator), scalar) if scalar in short else change(self, given, operator)

    def create_fma(self: Any, left: Any, right: Any, added: Any) -> Any:
        scalar = added.dtype.scalar
        found = add_product(self, widen(left), widen(right), widen(added))
        return rounded(found, scalar) if scalar in short else found

    builder.create_dot, builder.cast_impl, builder.create_fp_to_fp = create_dot, cast_impl, create_fp_to_fp
    builder.binary_op, builder.unary_op, builder.create_fma = binary_op, unary_op, create_fma


def _as_tensor(data: Any) -> torch.Tensor:
    """The array as a tensor, which needs it dense and writable."""
    import numpy
    import torch

    return torch.from_numpy(numpy.require(data, requirements=["C", "W"]))
