"""The environment variables hal reads, in one table and one place."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping

VARIABLES = {
    "HAL_BACKEND": "pins a backend by name for every request that it can serve",
    "HAL_PLUGINS": "the names, with commas, of the only plugins beside hal's own that may be loaded, or none; unset: all",
    "HAL_DEBUG": "1 turns what only the device can see (bad ids, NaN scores) into errors",
    "HAL_STRICT_WARMUP": "1 raises on a launch whose key warm_up() did not cover",
    "HAL_LOG": "log level of the command line: debug, info, warning, error",
}

SWITCHES = {"HAL_DEBUG": ("0", "1"), "HAL_STRICT_WARMUP": ("0", "1")}
"""The values of those that are on or off; any other leaves one off."""

_logger = logging.getLogger(__name__)


def read_variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of one of hal's variables, None where it is unset or empty."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is not one of hal's variables: {', '.join(VARIABLES)}")
    variables = os.environ if environ is None else environ
    # Asked on every step: os.environ raises and catches an exception to say that a variable is unset.
    return (variables[name] or None) if name in variables else None


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """HAL_* names that hal does not know, each with a suggestion or ""."""
    names = os.environ if environ is None else environ
    unknown = [name for name in names if name.startswith("HAL_") and name not in VARIABLES]
    return {name: next(iter(difflib.get_close_matches(name, VARIABLES, n=1)), "") for name in sorted(unknown)}


def find_mistakes(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A sentence per unknown HAL_* name, and per switch whose value is neither on nor off."""
    sentences = []
    for name, near in unknown_variables(environ).items():
        hint = f"; did you mean {near}?" if near else f"; known: {', '.join(VARIABLES)}"
        sentences.append(f"the environment variable {name} is not one hal reads{hint}")
    for name, accepted in SWITCHES.items():
        value = read_variable(name, environ)
        if value is not None and value not in accepted:
            sentences.append(f"{name} is {value!r} and therefore off; expected {' or '.join(accepted)}")
    return tuple(sentences)


def warn_of_mistakes(environ: Mapping[str, str] | None = None) -> None:
    """One log warning per mistake in hal's variables."""
    for sentence in find_mistakes(environ):
        _logger.warning("%s", sentence)
