"""What a request launches, compiled for the device that Triton runs on and loaded there before the first request comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .launch import POINTERS
from .specialisation import Specialisation

_DTYPES = {pointer: dtype for dtype, pointer in POINTERS.items()}
# Tensors that may be larger than 2 GiB; on AMD one within has a kernel of its own.
_CACHES = frozenset({"cache", "k", "v"})
_BEYOND_2_GIB = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pointer:
    """What Triton asks of a tensor where it only compiles: a type, whether the address is a multiple of 16, bytes in reach."""

    dtype: str
    address: int
    reach: int

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return self.reach


def load_for_current_device(found: Specialisation) -> None:
    """Compile one kernel by Triton's own way to a launch, so that the launch finds it there, and load it.

    A module that is first loaded while a graph is captured ends the capture.
    """
    kernel = found.load_kernel()
    for reach in (0, _BEYOND_2_GIB):
        binary = kernel.warmup(**_arguments(found, reach), grid=(1,), **found.options)
        # Asking for what launches a binary is what loads it.
        _ = binary.run


def _arguments(found: Specialisation, reach: int) -> dict[str, Any]:
    """Arguments of the classes that a specialisation is for; caches reach so many bytes."""
    arguments: dict[str, Any] = {}
    for name, kind in found.signature.items():
        is_multiple = name in found.attrs
        if kind == "constexpr":
            arguments[name] = found.constexprs[name]
        elif kind in _DTYPES:
            own = reach if name in _CACHES else 0
            arguments[name] = _Pointer(dtype=_DTYPES[kind], address=0 if is_multiple else 8, reach=own)
        elif kind == "fp32":
            arguments[name] = 1.0
        else:
            least = 1 << 40 if kind == "i64" else 16
            arguments[name] = least if is_multiple else least + 1
    return arguments
