"""The compilers of this environment, and what they call an arch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from hal.common.backends.registry import platforms
from hal.common.contract.arch import Arch

from .fleet import Compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Triton as it is here: its version and its compilers' names; version is None, with the reason, where it does not load."""

    version: str | None
    compilers: tuple[str, ...] = ()
    reason: str = ""


@cache
def find_toolchain() -> Toolchain:
    """What importing triton gives; it never raises."""
    try:
        import triton
        from triton.backends import backends
    except ModuleNotFoundError as error:
        return Toolchain(version=None, reason=f"{error}; install hal-attention[compile]")
    except Exception as error:  # noqa: BLE001 - a broken install raises anything; it becomes the reason
        return Toolchain(version=None, reason=f"triton does not load: {type(error).__name__}: {error}")
    return Toolchain(version=triton.__version__, compilers=tuple(sorted(backends)))


def find_arch(platform: str, name: str) -> Arch:
    """An arch's row of the table; both names as a Device has them."""
    return next(row for row in platforms()[platform].archs() if row.name == name)


def make_target(compiler: Compiler, arch: Arch, properties: Mapping[str, object] | None = None) -> Any:
    """triton's GPUTarget of an arch. properties: instead of the compiler's own, where an arch is named by them."""
    from triton.backends.compiler import GPUTarget

    if compiler.arch_as == "number":
        return GPUTarget(compiler.backend, int("".join(filter(str.isdigit, arch.name))), arch.warp_size)
    if compiler.arch_as == "name":
        return GPUTarget(compiler.backend, arch.name, arch.warp_size)
    _answer_for_driver(compiler)
    return GPUTarget(compiler.backend, {"name": arch.name, **(properties or compiler.properties)}, arch.warp_size)


def _answer_for_driver(compiler: Compiler) -> None:
    """Let a compiler that would build a library against a driver, only to name the device, find no name and ask no further."""
    from triton.backends import backends

    def parse_device_arch(_number: int) -> str:
        return ""

    def compile_module_from_src(_source: str, _name: str) -> SimpleNamespace:
        return SimpleNamespace(parse_device_arch=parse_device_arch)

    backends[compiler.name].compiler.__init__.__globals__["compile_module_from_src"] = compile_module_from_src
