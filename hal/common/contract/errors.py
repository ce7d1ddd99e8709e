"""What hal raises beyond ConfigError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hal.config.errors import HalError, InputError

if TYPE_CHECKING:
    from .reason import Reason


__all__ = [
    "BackendError",
    "BatchError",
    "CapacityError",
    "CheckpointError",
    "InputError",
    "LayoutError",
    "MissingLibraryError",
    "NoBackend",
    "NotBuiltError",
]


class BackendError(HalError, RuntimeError):
    """A backend cannot be registered, opened or called as asked."""


class NotBuiltError(BackendError, NotImplementedError):
    """The name is part of the public API and its code is not written yet."""


class MissingLibraryError(HalError, ModuleNotFoundError):
    """Something needs a library that is not installed; the text names the extra that brings it."""


class CheckpointError(HalError, RuntimeError):
    """A checkpoint folder does not hold exactly what its model needs; the text lists names, shapes and files."""


class LayoutError(HalError, ValueError):
    """Storage, rows or parts do not fit a cache layout."""


class BatchError(HalError, ValueError):
    """A batch contradicts itself, the plan's limits or the cache; nothing was written."""


class CapacityError(HalError, RuntimeError):
    """A page pool cannot give what was asked; the text has what is free and what would do."""


class NoBackend(HalError, LookupError):  # noqa: N818 - the public name is fixed
    """No backend serves a request; .rejected maps every backend to its reasons."""

    def __init__(self, message: str, rejected: Mapping[str, tuple[Reason, ...]]) -> None:
        super().__init__(message)
        self.rejected = dict(rejected)
