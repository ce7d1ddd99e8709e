"""Element types by name, so that planning needs no tensor library."""

from __future__ import annotations

import difflib

from .errors import InputError

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "uint8": 1,
}

MODEL_DTYPES = ("float16", "bfloat16", "float32", "float64")
"""What activations and weights are computed in; the other types are only stored."""


def dtype_name(dtype: object) -> str:
    """The plain name ("bfloat16") of a dtype given by name or as a torch.dtype; InputError lists the known names."""
    return _find_name(dtype, tuple(ITEM_SIZES))


def model_dtype_name(dtype: object) -> str:
    """The plain name of a dtype that a model can compute in; InputError lists those, also for one that is only stored."""
    return _find_name(dtype, MODEL_DTYPES)


def _find_name(dtype: object, accepted: tuple[str, ...]) -> str:
    name = str(dtype).removeprefix("torch.")
    if name in accepted:
        return name
    if name in ITEM_SIZES:
        raise InputError(f"dtype {name!r} is for storage, not for computing; expected one of {', '.join(accepted)}")
    near = difflib.get_close_matches(name, accepted, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"unknown dtype {name!r}; expected one of {', '.join(accepted)}{hint}")


def item_size(dtype: object) -> int:
    """Bytes of one element."""
    return ITEM_SIZES[dtype_name(dtype)]
