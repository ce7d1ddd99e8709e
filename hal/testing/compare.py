"""Comparisons that fail with the values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hal.common.contract.errors import BackendError

from .tolerances import tolerance


class ConformanceError(BackendError, AssertionError):
    """A kernel call does not do what the contract says."""


def expect(holds: bool, message: str) -> None:
    """Raise ConformanceError, with the message, unless it holds."""
    if not holds:
        raise ConformanceError(message)


def expect_close(actual: torch.Tensor, expected: torch.Tensor, dtype: object, what: str, roundings: int = 1) -> None:
    """Raise ConformanceError, naming the worst element, unless all are close; infinities must match and NaN is never right.

    roundings: how often a value is rounded to the dtype one after the other, as results that were merged from results are.
    """
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    expect(actual.shape == expected.shape, f"{what} has shape {list(actual.shape)}; expected {list(expected.shape)}")
    limits = tolerance(dtype)
    allowed = roundings * (limits.absolute + limits.relative * expected.abs())
    is_right = (actual == expected) | ((actual - expected).abs() <= allowed) & expected.isfinite()
    if bool(is_right.all()):
        return
    error = torch.where(is_right, 0.0, (actual - expected).abs()).nan_to_num(torch.inf, torch.inf)
    worst = tuple(int(index) for index in (error == error.max()).nonzero()[0])
    raise ConformanceError(
        f"{what}: {int((~is_right).sum())} of {is_right.numel()} elements are off; worst at {list(worst)}: "
        f"{float(actual[worst]):.6g}, expected {float(expected[worst]):.6g}"
    )


def expect_identical(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Raise ConformanceError unless dtype, shape and bits are the same, NaN included."""
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    expect(actual.dtype == expected.dtype, f"{what} is {actual.dtype}; expected {expected.dtype}")
    expect(actual.shape == expected.shape, f"{what} has shape {list(actual.shape)}; expected {list(expected.shape)}")
    differs = _bits(actual) != _bits(expected)
    if bool(differs.any()):
        first = tuple(int(index) for index in differs.nonzero()[0])
        raise ConformanceError(
            f"{what}: {int(differs.sum())} of {differs.numel()} elements differ; first at {list(first)}: "
            f"{actual[first].item()}, expected {expected[first].item()}"
        )


def expect_dtype(actual: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    """Raise ConformanceError, with both, unless the dtype is this one."""
    expect(actual.dtype == dtype, f"{what} is {actual.dtype}; expected {dtype}")


def expect_wide(actual: torch.Tensor, dtype: object, what: str) -> None:
    """Raise ConformanceError where the tensor is not fp32; float64 inputs may keep float64."""
    expect(
        actual.dtype in (torch.float32, *([torch.float64] if _name(dtype) == "float64" else [])),
        f"{what} is {actual.dtype}; expected torch.float32",
    )


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def expect_error(kinds: tuple[type[Exception], ...], what: str, action: Callable[[], object]) -> None:
    """Raise ConformanceError where the action returns or raises anything but one of the kinds."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        action()
    except kinds:
        return
    except Exception as error:
        raise ConformanceError(f"{what}: expected {names}, got {type(error).__name__}: {error}") from error
    raise ConformanceError(f"{what}: expected {names}, and nothing was raised")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.element_size()])
