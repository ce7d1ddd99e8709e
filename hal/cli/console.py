"""How the command line prints, and what counts as the user's mistake."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from hal.common.backends.registry import find_backend
from hal.common.contract.environment import read_variable, warn_of_mistakes
from hal.config import HalError

WIDTH = 100
NARROWEST = 40
LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LEVEL = "warning"

T = TypeVar("T")


class InputError(HalError, ValueError):
    """The command line asks for something impossible; the text is one line."""


def make_console() -> Console:
    """A console as wide as COLUMNS says, else as its terminal, else WIDTH; never narrower than names need."""
    console = Console(highlight=False)
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) else console.width if console.is_terminal else WIDTH
    console.width = max(NARROWEST, width)
    return console


def print_json(report: object) -> None:
    """The report on stdout as JSON, two spaces deep."""
    sys.stdout.write(json.dumps(report, indent=2, default=str) + "\n")


def fail(message: str) -> int:
    """Exit code 2, after one line on stderr."""
    # It stays a failure where nobody reads why.
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"hal: {' '.join(message.split())}\n")
    return 2


def checked(make: Callable[..., T], value: object) -> T:
    """make(value), with a plain ValueError told as the user's mistake."""
    try:
        return make(value)
    except ValueError as error:
        raise InputError(str(error)) from error


def check_backend_name(name: str | None) -> None:
    """Raise InputError where the pinned backend (the option, else HAL_BACKEND) is not registered."""
    pinned = name or read_variable("HAL_BACKEND")
    if pinned is None:
        return
    try:
        find_backend(pinned)
    except ValueError as error:
        raise InputError(str(error) if name else f"HAL_BACKEND is set: {error}") from error


def start_logging() -> None:
    """hal's log on stderr at the level of HAL_LOG, each message once; a level that does not exist is warned about.

    What will change is told in the same form, without a line of source.
    """
    asked = (read_variable("HAL_LOG") or DEFAULT_LEVEL).lower()
    level = asked if asked in LEVELS else DEFAULT_LEVEL
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("hal: %(levelname)s: %(message)s"))
    handler.addFilter(_Once())
    logger = logging.getLogger("hal")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    if asked != level:
        logger.warning("HAL_LOG is %r; expected one of %s. Taking %s", asked, ", ".join(LEVELS), level)
    warnings.formatwarning = _format_warning
    warn_of_mistakes()


_format_source = warnings.formatwarning


def _format_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    if issubclass(category, FutureWarning) and Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"hal: WARNING: {message}\n"
    return _format_source(message, category, filename, lineno, line)


class _Once(logging.Filter):
    """Lets each message through once: a plan asks the same question for every layer."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new
