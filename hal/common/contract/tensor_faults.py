"""What a tensor is and what it was to be, in the words of every check; each raises the error of its own place with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INT32 = frozenset({torch.int32})
INT64 = frozenset({torch.int64})
INTEGERS = INT32 | INT64
ANY = -1
"""A dimension of any size."""
FLAT, MATRIX, CUBE = (ANY,), (ANY, ANY), (ANY, ANY, ANY)
"""Shapes of so many dimensions, whatever their sizes."""

Dtypes = Collection[torch.dtype]


def find_fault(
    name: str,
    tensor: object,
    dtypes: Dtypes | None = None,
    shape: tuple[int, ...] | None = None,
    device: torch.device | None = None,
) -> str:
    """The sentence that says what a tensor is and what it was to be, empty where it is that; None looks at nothing.

    A device without an index is any of its type. While a graph is traced, sizes may be symbols; those are left to the run, so
    that a check adds no guard.
    """
    if isinstance(tensor, torch.Tensor):
        is_there = device is None or tensor.device == device or (device.index is None and tensor.device.type == device.type)
        if is_there and (dtypes is None or tensor.dtype in dtypes) and (shape is None or _fits(tensor.shape, shape)):
            return ""
    kinds = "a tensor" if dtypes is None else " or ".join(sorted(map(say_dtype, dtypes)))
    if dtypes is FLOATS:
        kinds = "a floating type"
    sizes = "" if shape is None else f" [{', '.join('n' if size is ANY else str(size) for size in shape)}]"
    return f"{name} is {say_tensor(tensor)}; expected {kinds}{sizes}{f' on {device}' if device is not None else ''}"


def say_tensor(tensor: object) -> str:
    """A tensor's type, shape and device; what else it is where it is none."""
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__}"
    return f"{say_dtype(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"


def say_dtype(dtype: torch.dtype) -> str:
    """An element type by its plain name."""
    return str(dtype).removeprefix("torch.")


def _fits(sizes: Sequence[int], shape: tuple[int, ...]) -> bool:
    if len(sizes) != len(shape):
        return False
    if shape is FLAT or shape is MATRIX or shape is CUBE:
        return True
    # No generator: each tensor of each call comes here.
    for size, wanted in zip(sizes, shape, strict=False):
        if size is not wanted and type(size) is int and type(wanted) is int and size != wanted != ANY:
            return False
    return True
