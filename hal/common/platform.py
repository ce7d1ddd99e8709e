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


@cache
def _archs(package: str) -> tuple[Arch, ...]:
    return read_archs(package)


def load_object(path: str) -> Any:
    """The object that "module:name" names; BackendError, chained, where it cannot be had."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
