"""A call's arguments by name: every tensor among them, found through whatever holds it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.layouts import Layout

Arguments = Mapping[str, Any]
Path = tuple[str | int, ...]
"""Where a tensor is: the argument, and the field or place in it, field by field."""


def find_tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor in a value, by its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    for key, part in _parts(value):
        yield from find_tensors(part, (*path, key))


def read_path(value: Any, path: Path) -> Any:
    """What is at a path."""
    for key in path:
        value = dict(_parts(value))[key]
    return value


def put(value: Any, path: Path, tensor: torch.Tensor) -> Any:
    """The value with another tensor at a path; what holds it is made anew, with the checks that it makes of itself."""
    if not path:
        return tensor
    key, *rest = path
    part = put(dict(_parts(value))[key], tuple(rest), tensor)
    if isinstance(value, Mapping):
        return {**value, key: part}
    if is_dataclass(value):
        return replace(value, **{str(key): part})  # type: ignore[type-var]
    if hasattr(value, "_replace"):
        return value._replace(**{str(key): part})
    return type(value)(part if index == key else old for index, old in enumerate(value))


def show_path(path: Path) -> str:
    """A path in words: "batch.block_table", "segments.0.rows"."""
    return ".".join(map(str, path))


def make_call(backend: Backend, call: str, arguments: Arguments) -> Any:
    """The call with its arguments where its signature has them."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters(call):
        if parameter.name not in arguments:
            continue
        value = arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            given.extend(value)
        elif parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            named[parameter.name] = value
        else:
            given.append(value)
    return getattr(backend, call)(*given, **named)


def parameters(call: str) -> tuple[inspect.Parameter, ...]:
    """The parameters of a call of the contract, without self."""
    return tuple(inspect.signature(getattr(Backend, call)).parameters.values())[1:]


def _parts(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Layout):
        return
    if isinstance(value, Mapping):
        yield from value.items()
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value) if field.init)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
