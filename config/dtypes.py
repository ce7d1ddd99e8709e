"""Element types by name, so that planning needs no tensor library."""

from __future__ import annotations

import difflib

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


def dtype_name(dtype: object) -> str:
    """The plain name ("bfloat16") of a dtype given by name or as a torch.dtype; ValueError lists the known names."""
    name = str(dtype).removeprefix("torch.")
    if name in ITEM_SIZES:
        return name
    near = difflib.get_close_matches(name, ITEM_SIZES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown dtype {name!r}; known: {', '.join(ITEM_SIZES)}.{hint}")


def item_size(dtype: object) -> int:
    """Bytes of one element."""
    return ITEM_SIZES[dtype_name(dtype)]
