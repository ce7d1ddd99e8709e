"""Modules made of recorded signatures and functions that keep to them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol


class Recorded(Protocol):
    """A recorded signature: whose it is, where it lives ("module:qualname") and what it takes."""

    @property
    def library(self) -> str: ...

    @property
    def release(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def signature(self) -> inspect.Signature: ...


def make_modules(
    recorded: Iterable[Recorded], functions: Mapping[str, Callable[..., object]], flags: Mapping[str, object]
) -> dict[str, ModuleType]:
    """The modules of some recorded functions and the packages above them; functions are named by the end of the target.

    Each takes its arguments as one namespace, defaults filled in. A function without an implementation is left out.
    """
    modules: dict[str, ModuleType] = {}
    for row in recorded:
        name, _, qualname = row.target.partition(":")
        implementation = functions.get(qualname.rpartition(".")[2])
        if implementation is None:
            continue
        module = _make_packages(modules, name)
        holder: Any = module
        for part in qualname.split(".")[:-1]:
            if not hasattr(holder, part):
                setattr(holder, part, SimpleNamespace())
            holder = getattr(holder, part)
        setattr(holder, qualname.rpartition(".")[2], _make_function(row.signature, implementation))
        for flag, value in flags.items():
            setattr(module, flag, value)
    return modules


def _make_packages(modules: dict[str, ModuleType], name: str) -> ModuleType:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ".".join(parts[:count])
        if path not in modules:
            modules[path] = ModuleType(path)
            modules[path].__path__ = []
    return modules[name]


def _make_function(signature: inspect.Signature, implementation: Callable[..., object]) -> Callable[..., object]:
    def function(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return implementation(SimpleNamespace(**bound.arguments))

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


@contextmanager
def installed(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """The modules importable for as long as the context lasts; what else is imported meanwhile stays."""
    hidden = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in hidden.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
