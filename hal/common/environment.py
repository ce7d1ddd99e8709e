"""The environment variables hal reads, in one table and one place."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping

VARIABLES = {
    "HAL_BACKEND": "pins a backend by name for every request that it can serve",
    "HAL_DEBUG": "1 turns what only the device can see (bad ids, NaN scores) into errors",
    "HAL_STRICT_WARMUP": "1 raises on a launch whose key warm_up() did not cover",
    "HAL_LOG": "log level of the command line: debug, info, warning, error",
}

_logger = logging.getLogger(__name__)


def read_variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of one of hal's variables, None where it is unset or empty."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is not one of hal's variables: {', '.join(VARIABLES)}")
    return (os.environ if environ is None else environ).get(name) or None


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """HAL_* names that hal does not know, each with a suggestion or ""."""
    names = os.environ if environ is None else environ
    unknown = [name for name in names if name.startswith("HAL_") and name not in VARIABLES]
    return {name: next(iter(difflib.get_close_matches(name, VARIABLES, n=1)), "") for name in sorted(unknown)}


def warn_of_unknown_variables(environ: Mapping[str, str] | None = None) -> None:
    """One log warning per unknown HAL_* name."""
    for name, near in unknown_variables(environ).items():
        hint = f"; did you mean {near}?" if near else f"; known: {', '.join(VARIABLES)}"
        _logger.warning("the environment variable %s is not one hal reads%s", name, hint)
