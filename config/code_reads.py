"""Which fields of a config the attention code of its model reads, from the source of transformers' modules."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CAUSAL_MASK = "create_causal_mask"
ATTENTION = re.compile(r"attention|attn|indexer|compressor|cache|mask", re.IGNORECASE)
"""Classes and functions of a modeling file whose fields decide what attention does; heads (BertForMaskedLM) are not meant."""


def attention_fields(cls: type) -> frozenset[str]:
    """The fields that attention modules take from this class's configs, and those that count how often something is run.

    Of modules that name another config class in their constructor nothing is taken.
    """
    found: set[str] = set()
    for piece in _pieces(cls):
        if piece.config_class in ("", cls.__name__):
            found |= piece.counts
            if ATTENTION.search(piece.name) and re.search(r"For[A-Z]", piece.name) is None:
                found |= piece.fields
    return frozenset(found)


def masks_causally(cls: type) -> bool:
    """Whether a model of this class's configs hides later tokens whatever its `is_decoder` switch says."""
    return any(
        piece.config_class == cls.__name__ and CAUSAL_MASK in piece.names and "is_decoder" not in piece.names
        for piece in _pieces(cls)
    )


def kwargs_read(cls: type) -> frozenset[str]:
    """The keyword arguments that a config class takes beside its declared fields: what its constructors pop, get or look for."""
    found: set[str] = set()
    for base in cls.__mro__:
        if ".models." in base.__module__:
            for name in ("__init__", "__post_init__"):
                function = base.__dict__.get(name)
                if inspect.isfunction(function) and not _is_generated(function):
                    found |= _keys_of_kwargs(ast.parse(textwrap.dedent(inspect.getsource(function))))
    return frozenset(found)


def own_fields(cls: Any) -> frozenset[str]:
    """Every name that a config class knows: declared fields, other names for them, what its constructors take besides."""
    return frozenset(item.name for item in dataclasses.fields(cls)) | frozenset(cls.attribute_map) | kwargs_read(cls)


def _is_generated(function: Any) -> bool:
    """Whether a function has no source: a dataclass's own constructor."""
    return not Path(inspect.getfile(inspect.unwrap(function))).is_file()


def _keys_of_kwargs(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "get") and node.args:
            holder, key = node.func.value, node.args[0]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            holder, key = node.comparators[0], node.left
        else:
            continue
        if isinstance(holder, ast.Name) and holder.id == "kwargs" and isinstance(key, ast.Constant):
            found.add(str(key.value))
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One class or function of a modeling file: the config it takes, what it reads of it, what it counts by, every name in it."""

    name: str
    config_class: str
    fields: frozenset[str]
    counts: frozenset[str]
    names: frozenset[str]


def _pieces(cls: type) -> tuple[_Piece, ...]:
    return _read_folder(Path(sys.modules[cls.__module__].__file__ or "").parent)


@functools.cache
def _read_folder(folder: Path) -> tuple[_Piece, ...]:
    found = []
    for path in sorted(folder.glob("modeling_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                ranges = [call for call in ast.walk(node) if isinstance(call, ast.Call) and _name(call.func) == "range"]
                piece = _Piece(
                    name=node.name,
                    config_class=_config_class(node),
                    fields=frozenset(_fields(node)),
                    counts=frozenset(field for call in ranges for field in _fields(call)),
                    names=frozenset(_name(item) or getattr(item, "attr", "") for item in ast.walk(node)),
                )
                found.append(piece)
    return tuple(found)


def _config_class(node: ast.AST) -> str:
    """The class that a constructor's `config` is annotated with, "" without one."""
    arguments = [item for item in ast.walk(node) if isinstance(item, ast.arg) and item.arg == "config" and item.annotation]
    return next((name for item in arguments if (name := _name(item.annotation)).endswith("Config")), "")


def _name(node: ast.AST | None) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _fields(node: ast.AST) -> Iterator[str]:
    """Attributes of whatever is called config, also through getattr."""
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and _is_config(item.value):
            yield item.attr
        elif isinstance(item, ast.Call) and _name(item.func) in ("getattr", "hasattr") and len(item.args) > 1:
            holder, key = item.args[:2]
            yield from (str(key.value) for _ in (key,) if _is_config(holder) and isinstance(key, ast.Constant))


def _is_config(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else _name(node)
    return name.endswith("config")
