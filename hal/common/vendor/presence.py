"""Whether a vendor's library is here and in which version, from what is on the disk and never by importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch

from hal.common.contract.software import Library, Software


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorLibrary(Library):
    """A library whose distribution alone proves nothing.

    files: patterns of files that the distribution must have installed, its compiled parts. modules: top-level modules that
    must be there; nothing of them is run.
    """

    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def find_libraries(libraries: Iterable[Library]) -> Software:
    """Which of some libraries are installed, and what is already known against those that are."""
    versions: dict[str, str] = {}
    broken: dict[str, str] = {}
    for library in libraries:
        for name in library.distributions:
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            try:
                versions[library.name] = str(distribution.version or "unknown")
                failure = _find_failure(library, distribution)
            except Exception as error:  # noqa: BLE001 - metadata that cannot be read is a finding about the library
                versions[library.name] = "unknown"
                failure = f"{type(error).__name__}: {error}"
            if failure is not None:
                broken[library.name] = failure
            break
    return Software(versions, broken)


def _find_failure(library: Library, distribution: importlib.metadata.Distribution) -> str | None:
    if not isinstance(library, VendorLibrary):
        return None
    installed = [str(path) for path in distribution.files or ()]
    for pattern in library.files:
        if not any(fnmatch(path, pattern) for path in installed):
            return f"the distribution installed no file {pattern}"
    for module in library.modules:
        if importlib.util.find_spec(module) is None:
            return f"its module {module} is not there"
    return None
