"""Stand-ins for vendors' libraries: real signatures, stated constraints and odd returns, computed by the float64 reference.

A platform brings its own as STAND_INS, a StandIn by library, in a package `fakes` beside its declaration.

with installed(make_fakes(read_signatures(), arch="sm_90", libraries={"flash_attn_3": "3.0.0"})):
    backend = FlashAttention(Device.from_arch("sm_90", torch_device="cpu"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from hal.common.backends.registry import platforms

from .modules import Recorded, installed, make_modules
from .stand_in import StandIn

__all__ = ["StandIn", "find_stand_ins", "installed", "make_fakes"]


def find_stand_ins() -> dict[str, StandIn]:
    """Every registered platform's stand-ins by library."""
    packages = [f"{platform.package}.fakes" for platform in platforms().values()]
    return {
        library: stand_in
        for package in packages
        if find_spec(package) is not None
        for library, stand_in in import_module(package).STAND_INS.items()
    }


def make_fakes(recorded: Iterable[Recorded], *, arch: str, libraries: Mapping[str, str]) -> dict[str, ModuleType]:
    """Modules by name for some libraries in recorded releases, as they would behave on an arch.

    ValueError for a library that has no stand-in, or a release of which no signature is recorded.
    """
    signatures, stand_ins = list(recorded), find_stand_ins()
    modules: dict[str, ModuleType] = {}
    for library, release in libraries.items():
        if library not in stand_ins:
            raise ValueError(f"there is no stand-in for {library!r}; there are: {', '.join(sorted(stand_ins))}")
        known = [row for row in signatures if row.library == library and row.release == release]
        if not known:
            releases = sorted({row.release for row in signatures if row.library == library})
            raise ValueError(f"no signature of {library} {release} is recorded; recorded releases: {', '.join(releases)}")
        modules |= make_modules(known, stand_ins[library].make(arch, release), stand_ins[library].flags)
    return modules
