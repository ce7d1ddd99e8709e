"""The four overloads of a call that attends: results in new tensors or into out=, with the lse or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from .operands import check_out
from .registration import define_operator
from .results import log_dtype, settle
from .schema import write_schema

Attended = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attending:
    """The overloads hal::name (out), .lse (out and lse), .out (into out, nothing) and .out_lse (into out, lse)."""

    plain: torch._ops.OpOverload
    with_lse: torch._ops.OpOverload
    into: torch._ops.OpOverload
    into_with_lse: torch._ops.OpOverload

    def attend(self, arguments: tuple[Any, ...], need_lse: bool, out: torch.Tensor | None) -> Attended:
        """out, the given one where there is one, and the lse or None, by the overload that does just that."""
        if out is None:
            return self.with_lse(*arguments) if need_lse else (self.plain(*arguments), None)
        if need_lse:
            return out, self.into_with_lse(*arguments, out=out)
        self.into(*arguments, out=out)
        return out, None


class AttendingOperands(Protocol):
    """An operator's arguments, a NamedTuple; q [tokens, heads, head_dim] is among them."""

    @property
    def q(self) -> torch.Tensor: ...


Operands = TypeVar("Operands", bound=AttendingOperands)


def define_attending(
    name: str,
    operands: Callable[..., Operands],
    check: Callable[[Operands], None],
    run: Callable[[Operands, bool, torch.Tensor | None], Attended],
    value_width: Callable[[Operands], int],
) -> Attending:
    """The overloads of one call, whose schema is that of its operands.

    check raises for those that do not fit. run takes need_lse and out beside them. value_width: the last dimension of out.
    """

    def read(arguments: tuple[Any, ...], out: torch.Tensor | None = None) -> Operands:
        found = operands(*arguments)
        check(found)
        if out is not None:
            check_out(name, found.q, out)
        return found

    def run_plain(*arguments: Any) -> torch.Tensor:
        found = read(arguments)
        return settle(run(found, False, None)[0], found.q.dtype)

    def run_with_lse(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = read(arguments)
        result, lse = run(found, True, None)
        return settle(result, found.q.dtype), _settle_lse(lse, found.q)

    def run_into(*arguments: Any, out: torch.Tensor) -> None:
        run(read(arguments, out), False, out)

    def run_into_with_lse(*arguments: Any, out: torch.Tensor) -> torch.Tensor:
        found = read(arguments, out)
        return _settle_lse(run(found, True, out)[1], found.q)

    def trace_result(found: Operands) -> torch.Tensor:
        return found.q.new_empty((found.q.shape[0], found.q.shape[1], value_width(found)))

    def trace_lse(found: Operands) -> torch.Tensor:
        return found.q.new_empty((found.q.shape[0], found.q.shape[1]), dtype=log_dtype(found.q.dtype))

    def trace_plain(*arguments: Any) -> torch.Tensor:
        return trace_result(read(arguments))

    def trace_with_lse(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = read(arguments)
        return trace_result(found), trace_lse(found)

    def trace_into(*arguments: Any, out: torch.Tensor) -> None:
        read(arguments, out)

    def trace_into_with_lse(*arguments: Any, out: torch.Tensor) -> torch.Tensor:
        return trace_lse(read(arguments, out))

    arguments = write_schema(operands)
    written = f"{arguments}, *, Tensor(a!) out"
    return Attending(
        plain=define_operator(name, f"({arguments}) -> Tensor", run_plain, trace_plain),
        with_lse=define_operator(f"{name}.lse", f"({arguments}) -> (Tensor, Tensor)", run_with_lse, trace_with_lse),
        into=define_operator(f"{name}.out", f"({written}) -> ()", run_into, trace_into),
        into_with_lse=define_operator(f"{name}.out_lse", f"({written}) -> Tensor", run_into_with_lse, trace_into_with_lse),
    )


def _settle_lse(lse: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    if lse is None:
        raise TypeError("a backend gave no lse though one was asked for")
    return settle(lse, log_dtype(q.dtype))
