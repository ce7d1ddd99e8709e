"""The one way to a kernel: a launch as a value, the key it compiles under, and the launcher that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from hal.common.contract.errors import BackendError, LayoutError

from .interpreter import repair_interpreter

_MAX_INT32 = 2**31 - 1
POINTERS = {
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "float32": "*fp32",
    "int32": "*i32",
    "int64": "*i64",
    "uint8": "*u8",
}
"""Triton's pointer types, by the element types that kernels take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel with everything that it is given. kernel: "module:function" in hal.common.triton.kernels.

    What it compiles for depends on tensors (element type, 16-byte alignment), tables (element type alone), strides (1, a
    multiple of 16, or other), numbers (integer or float alone), constants and the two launch options.
    """

    kernel: str
    grid: tuple[int, ...]
    tensors: Mapping[str, Any]
    tables: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    strides: Mapping[str, int]
    numbers: Mapping[str, int | float]
    constants: Mapping[str, int | bool]
    num_warps: int
    num_stages: int = 1


@dataclass(frozen=True, slots=True)
class LaunchKey:
    """What one compiled kernel serves: equal keys never compile twice.

    arguments: (name, class) pairs; a class is a type of Triton's, with "/16" where a multiple of 16 is known, or "1".
    """

    kernel: str
    arch: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool], ...]
    num_warps: int
    num_stages: int


def launch_key(launch: Launch, arch: str) -> LaunchKey:
    """The key of a launch on an arch; the only function that computes one, for planned and for real launches alike."""
    arguments = [(name, pointer_class(tensor, True)) for name, tensor in launch.tensors.items()]
    arguments += [(name, _pointers(tensor.dtype)[0]) for name, tensor in launch.tables.items()]
    arguments += [(name, integer_class(value)) for name, value in launch.strides.items()]
    arguments += [(name, number_class(value)) for name, value in launch.numbers.items()]
    return LaunchKey(launch.kernel, arch, tuple(arguments), tuple(launch.constants.items()), launch.num_warps, launch.num_stages)


def pointer_class(tensor: Any, is_specialised: bool) -> str:
    """The class of a tensor: its pointer type, and whether its address is known to be a multiple of 16."""
    kind, aligned = _pointers(tensor.dtype)
    return kind if not is_specialised or tensor.data_ptr() % 16 else aligned


@cache
def _pointers(dtype: Any) -> tuple[str, str]:
    name = str(dtype).removeprefix("torch.")
    if name not in POINTERS:
        raise BackendError(f"no kernel takes a tensor of {name}; they take {', '.join(POINTERS)}")
    return POINTERS[name], f"{POINTERS[name]}/16"


def integer_class(value: int) -> str:
    """The class of an integer that kernels specialise on."""
    if value == 1:
        return "1"
    if -_MAX_INT32 <= value <= _MAX_INT32:
        return "i32" if value % 16 else "i32/16"
    return "i64" if value % 16 else "i64/16"


def number_class(value: float) -> str:
    """The class of a number that kernels take as it comes."""
    if type(value) is float:
        return "fp32"
    return "i32" if -_MAX_INT32 <= value <= _MAX_INT32 else "i64"


class Launcher:
    """Runs launches on one arch, and tells every watcher the key of each before it runs."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self._watchers: list[Callable[[LaunchKey], None]] = []

    def watch(self, watcher: Callable[[LaunchKey], None]) -> Callable[[], None]:
        """Call the watcher with the key of every launch from now on; the result ends it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def run(self, launch: Launch) -> None:
        """Run a launch, or nothing where its grid is empty; BackendError where it cannot run here."""
        if 0 in launch.grid:
            return
        key = launch_key(launch, self.arch)
        for watcher in self._watchers:
            watcher(key)
        kernel = load_kernel(launch.kernel)
        device = _one_device(launch)
        _check_place(kernel, device, launch.kernel)
        with _on(device):
            kernel[launch.grid](
                **launch.tensors,
                **launch.tables,
                **launch.strides,
                **launch.numbers,
                **launch.constants,
                num_warps=launch.num_warps,
                num_stages=launch.num_stages,
            )


def load_kernel(path: str) -> Any:
    """The kernel that "module:function" names; BackendError where triton is not installed."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(f"hal.common.triton.kernels.{module}"), name)
    except ImportError as error:
        raise BackendError(
            f"the kernel {path} needs triton, which does not load: {error}; it comes with torch for GPUs, and with "
            "hal-attention[compile] elsewhere"
        ) from error


def _one_device(launch: Launch) -> Any:
    """The device of every tensor of a launch; LayoutError where one is elsewhere: its address would be read here."""
    tensors = [*launch.tensors.values(), *launch.tables.values()]
    first = tensors[0]
    # Both are quicker to ask than the device itself, and every launch comes here; what has no memory has no index either.
    if first.is_cpu:
        is_together = {tensor.is_cpu for tensor in tensors} == {True}
    else:
        index = first.get_device()
        is_together = index >= 0 and {tensor.get_device() for tensor in tensors} == {index}
    if is_together:
        return first.device
    places = {name: str(tensor.device) for name, tensor in (*launch.tensors.items(), *launch.tables.items())}
    raise LayoutError(f"{launch.kernel}: its tensors are on several devices, {places}; expected one")


def _check_place(kernel: Any, device: Any, path: str) -> None:
    if type(kernel).__name__.startswith("Interpreted"):
        repair_interpreter()
    elif device.type == "cpu":
        raise BackendError(
            f"the kernel {path} is compiled for GPUs and its tensors are on the CPU; set TRITON_INTERPRET=1 before the first "
            "call to interpret it there"
        )


def _on(device: Any) -> Any:
    """Triton launches on the current device, which need not be the tensors'."""
    if device.type == "cpu":
        return nullcontext()
    import torch

    return getattr(torch, device.type).device(device)
