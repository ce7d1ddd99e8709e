"""What a platform folder exports: its name, its archs, its backends and how to look for its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from .arch import Arch, read_archs
from .errors import BackendError

DeviceRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One platform; everything in it is named by dotted path, so that declaring it imports nothing.

    backends: "module:Class" in no particular order. probe_path: "module:function" that returns (rows, findings), a row
    holding Device's fields. torch_type: torch's name of the device type. always_present: true only of the CPU.
    """

    name: str
    package: str
    backends: tuple[str, ...]
    probe_path: str
    torch_type: str
    always_present: bool = False

    def archs(self) -> tuple[Arch, ...]:
        """The platform's rows of the arch table."""
        return _archs(self.package)

    def probe(self) -> tuple[Sequence[DeviceRow], Sequence[str]]:
        """Rows of the devices found and sentences on what was looked for; raises whatever the vendor's library raises."""
        rows, findings = load_object(self.probe_path)()
        return rows, findings


def check_platform(platform: object) -> None:
    """Raise BackendError, naming it, where a declaration lacks something."""
    if not isinstance(platform, Platform):
        raise BackendError(f"{platform!r} is not a hal.Platform")
    for name in ("name", "package", "probe_path", "torch_type"):
        value = getattr(platform, name)
        if not isinstance(value, str) or not value:
            raise BackendError(f"the {name} of platform {platform.name!r} is {value!r}; expected a text that is not empty")
    if not isinstance(platform.backends, (tuple, list)):
        raise BackendError(f"the backends of platform {platform.name!r} are {platform.backends!r}; expected a tuple of paths")


def check_archs(platform: Platform) -> None:
    """Raise BackendError, chained, where a platform's table cannot be read."""
    try:
        if not platform.archs():
            raise BackendError("it has none")
    except Exception as error:
        # Every search for a target reads every platform's table: one that cannot be read would end them all.
        raise BackendError(
            f"the archs of platform {platform.name!r} cannot be read from {platform.package}/archs.toml: "
            f"{type(error).__name__}: {error}"
        ) from error


@cache
def _archs(package: str) -> tuple[Arch, ...]:
    return read_archs(package)


def load_object(path: str) -> Any:
    """The object that "module:name" names; BackendError, chained, where it cannot be had."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        # What a vendor's module raises at import follows no rule.
        raise BackendError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
