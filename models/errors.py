"""What goes wrong between a checkpoint and running text."""

from __future__ import annotations

from collections.abc import Sequence

from hal.common.contract.errors import CheckpointError
from hal.config import HalError

__all__ = ["NEXT_STEP", "CheckpointError", "GenerationError", "UnsupportedModelError", "describe", "listed", "printable"]

NEXT_STEP = "run it with transformers' own attention"
"""What is left to do with a model that hal cannot serve."""


LONGEST_NAME = 600
"""More than any sentence on a name that a model has."""


def describe(error: BaseException) -> str:
    """Another library's error on one line, its type first."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def listed(names: Sequence[str], shown: int = 8) -> str:
    """The first names and how many more there are: "a, b, and 3 more"."""
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(printable, names[:shown])) + more


def printable(text: str) -> str:
    """A name, or a sentence on one, as it can stand in a line: what moves the cursor is spelt out, and long texts are cut."""
    plain = text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return (plain if len(plain) <= LONGEST_NAME else f"{plain[:LONGEST_NAME]}...") or "''"


class UnsupportedModelError(HalError, NotImplementedError):
    """A transformers model cannot run on hal attention; the text says which module and why."""


class GenerationError(HalError, ValueError):
    """A prompt or a generation setting cannot be served; the text gives the value and the limit it meets."""
