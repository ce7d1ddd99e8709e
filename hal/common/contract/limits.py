"""What an engine promises never to exceed; every buffer of a plan is sized from it."""

from __future__ import annotations

from dataclasses import dataclass

from hal.config.values import LARGEST

from .errors import InputError

MAX_CONTEXT_ROWS = 65536
"""The most tokens of earlier steps that are gathered at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one engine: lengths and counts in tokens and requests, max_logits_bytes for one indexer chunk's scores.

    block_size None leaves the page size to the chosen backend. ValueError for a bound below 1.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int | None = None
    max_logits_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_logits_bytes"):
            check_positive_int(name, getattr(self, name))
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            value = getattr(self, name)
            if isinstance(value, int) and value > LARGEST:
                raise InputError(f"{name} is {value}; expected at most {LARGEST}, since lengths and counts are int32")
        if self.block_size is not None:
            check_positive_int("block_size", self.block_size)


def check_kind(name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise InputError, with the name and the value, unless the value is what the words expect."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_whole(name: str, value: object, expected: str) -> None:
    """Raise InputError for what is no whole number; a bool is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_positive_int(name: str, value: object) -> None:
    """Raise InputError, with the name and the value, unless it is a whole number above 0; a bool is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}; expected a whole number of at least 1")
