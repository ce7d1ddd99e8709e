"""An operator's arguments, said once: the fields of a NamedTuple, and the schema that torch reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import torch

_TYPES: dict[Any, str] = {
    torch.Tensor: "Tensor",
    torch.Tensor | None: "Tensor?",
    int: "SymInt",
    int | None: "SymInt?",
    float: "float",
    float | None: "float?",
    bool: "bool",
    str: "str",
    str | None: "str?",
    list[torch.Tensor]: "Tensor[]",
    list[torch.Tensor | None]: "Tensor?[]",
    list[int]: "SymInt[]",
    list[int] | None: "SymInt[]?",
    list[str]: "str[]",
}


def write_schema(operands: Callable[..., Any], mutated: Sequence[str] = ()) -> str:
    """The arguments of a schema, from the fields of a NamedTuple in their order; mutated: those tensors that are written."""
    marks = {name: f"Tensor({mark}!)" for name, mark in zip(mutated, "abc", strict=False)}
    return ", ".join(f"{marks.get(name) or _TYPES[kind]} {name}" for name, kind in get_type_hints(operands).items())
