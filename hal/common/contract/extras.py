"""What an installation without torch says of the names that need it: which extra brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from .errors import MissingLibraryError

EXTRAS = {
    "torch": "torch",
    "numpy": "torch",
    "safetensors": "torch",
    "transformers": "models",
    "tokenizers": "models",
    "triton": "compile",
}
"""The extra of hal-attention that brings each library which planning does without."""


@contextmanager
def naming_extra(what: str) -> Iterator[None]:
    """A block in which a library that is not installed raises MissingLibraryError, with what needs it and the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise _explain(what, error) from error


def _explain(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS or isinstance(error, MissingLibraryError):
        return error
    return MissingLibraryError(
        f"{what} needs {library}, which is not installed: pip install 'hal-attention[{EXTRAS[library]}]'", name=library
    )


def stand_in(name: str, error: ModuleNotFoundError) -> type:
    """A class in the place of one whose library is not installed: it can be caught, named and asked for, never made or used.

    Raises `error` where it is about anything else.
    """
    explained = _explain(name, error)
    if not isinstance(explained, MissingLibraryError):
        raise error
    return _Absent(name.rpartition(".")[2], (), {"__doc__": str(explained), "_explained": explained})


class _Absent(type):
    _explained: MissingLibraryError

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise cls._explained

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise cls._explained
