"""What goes wrong between a checkpoint and running text."""

from __future__ import annotations

from collections.abc import Sequence

from hal.common.contract.errors import CheckpointError
from hal.config import HalError

__all__ = ["NEXT_STEP", "CheckpointError", "GenerationError", "UnsupportedModelError", "describe", "listed"]

NEXT_STEP = "run it with transformers' own attention"
"""What is left to do with a model that hal cannot serve."""


def describe(error: BaseException) -> str:
    """Another library's error on one line, its type first."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def listed(names: Sequence[str], shown: int = 8) -> str:
    """The first names and how many more there are: "a, b, and 3 more"."""
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


class UnsupportedModelError(HalError, NotImplementedError):
    """A transformers model cannot run on hal attention; the text says which module and why."""


class GenerationError(HalError, ValueError):
    """A prompt or a generation setting cannot be served; the text gives the value and the limit it meets."""
