"""Vendors' signatures as recorded from their releases: what a call must bind to without the library being there."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSignature:
    """One function of one release. target: "module:qualname". Defaults that are not literals are kept as `...`."""

    library: str
    release: str
    source: str
    target: str
    signature: inspect.Signature


def read_signatures() -> tuple[RecordedSignature, ...]:
    """Every recorded signature, by library, release and target; ValueError names a row that cannot be read."""
    rows = json.loads(files(__package__).joinpath("signatures.json").read_text(encoding="utf-8"))
    return tuple(
        RecordedSignature(
            library=row["library"],
            release=row["release"],
            source=row["source"],
            target=row["target"],
            signature=parse_parameters(row["parameters"]),
        )
        for row in rows
    )


def parse_parameters(text: str) -> inspect.Signature:
    """The signature of "a, b=1, *, c=None"; ValueError where it is no parameter list."""
    try:
        body = ast.parse(f"def recorded({text}): ...").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a list of parameters: {error}") from error
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        raise ValueError(f"{text!r} is not a list of parameters")
    return inspect.Signature(_parameters(body[0].args))


def _parameters(listed: ast.arguments) -> list[inspect.Parameter]:
    plain: list[tuple[ast.arg, inspect._ParameterKind]] = []
    plain += [(argument, inspect.Parameter.POSITIONAL_ONLY) for argument in listed.posonlyargs]
    plain += [(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD) for argument in listed.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(listed.defaults)) + list(listed.defaults)
    found = [_parameter(argument.arg, kind, default) for (argument, kind), default in zip(plain, defaults, strict=True)]
    if listed.vararg is not None:
        found.append(inspect.Parameter(listed.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    for argument, default in zip(listed.kwonlyargs, listed.kw_defaults, strict=True):
        found.append(_parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default))
    if listed.kwarg is not None:
        found.append(inspect.Parameter(listed.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return found


def _parameter(name: str, kind: inspect._ParameterKind, default: ast.expr | None) -> inspect.Parameter:
    if default is None:
        return inspect.Parameter(name, kind)
    try:
        return inspect.Parameter(name, kind, default=ast.literal_eval(default))
    except ValueError:
        return inspect.Parameter(name, kind, default=...)
