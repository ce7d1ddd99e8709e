"""Small tensors gain nothing from threads, and Triton's interpreter nothing from patching its language at every launch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _NoScope:
    def restore(self) -> None:
        """Nothing to restore: the patch stays for the whole process."""


@pytest.fixture(scope="session", autouse=True)
def patched_language() -> Iterator[None]:
    """The language patched once; a process that interprets kernels never compiles one, so it may stay so."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patch(SimpleNamespace(__globals__={"tl": language, "core": language.core}))

    def keep(_function: Any) -> _NoScope:
        return _NoScope()

    with pytest.MonkeyPatch.context() as context:
        context.setattr(interpreter, "_patch_lang", keep)
        yield
