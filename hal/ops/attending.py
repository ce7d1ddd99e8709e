"""The four overloads of a call that attends: results in new tensors or into out=, with the lse or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .operands import check_out
from .registration import define_operator
from .results import log_dtype, settle

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


def define_attending(
    name: str, arguments: str, check: Callable[..., None], run: Callable[..., Attended], value_width: Callable[..., int]
) -> Attending:
    """The overloads of one call; its first argument is q [tokens, heads, head_dim].

    check takes the schema's arguments in order and raises for those that do not fit. run takes them too, then need_lse and
    out. value_width takes the same arguments and gives the last dimension of out.
    """

    def run_plain(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        check(q, *rest)
        return settle(run(q, *rest, need_lse=False, out=None)[0], q.dtype)

    def run_with_lse(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        check(q, *rest)
        result, lse = run(q, *rest, need_lse=True, out=None)
        return settle(result, q.dtype), _settle_lse(lse, q)

    def check_into(q: torch.Tensor, *rest: Any, out: torch.Tensor) -> None:
        check(q, *rest)
        check_out(name, q, out)

    def run_into(q: torch.Tensor, *rest: Any, out: torch.Tensor) -> None:
        check_into(q, *rest, out=out)
        run(q, *rest, need_lse=False, out=out)

    def run_into_with_lse(q: torch.Tensor, *rest: Any, out: torch.Tensor) -> torch.Tensor:
        check_into(q, *rest, out=out)
        return _settle_lse(run(q, *rest, need_lse=True, out=out)[1], q)

    def trace_plain(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        check(q, *rest)
        return q.new_empty((q.shape[0], q.shape[1], value_width(q, *rest)))

    def trace_lse(q: torch.Tensor) -> torch.Tensor:
        return q.new_empty((q.shape[0], q.shape[1]), dtype=log_dtype(q.dtype))

    def trace_with_lse(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return trace_plain(q, *rest), trace_lse(q)

    def trace_into_with_lse(q: torch.Tensor, *rest: Any, out: torch.Tensor) -> torch.Tensor:
        check_into(q, *rest, out=out)
        return trace_lse(q)

    written = f"{arguments}, *, Tensor(a!) out"
    return Attending(
        plain=define_operator(name, f"({arguments}) -> Tensor", run_plain, trace_plain),
        with_lse=define_operator(f"{name}.lse", f"({arguments}) -> (Tensor, Tensor)", run_with_lse, trace_with_lse),
        into=define_operator(f"{name}.out", f"({written}) -> ()", run_into, check_into),
        into_with_lse=define_operator(f"{name}.out_lse", f"({written}) -> Tensor", run_into_with_lse, trace_into_with_lse),
    )


def _settle_lse(lse: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    if lse is None:
        raise TypeError("a backend gave no lse though one was asked for")
    return settle(lse, log_dtype(q.dtype))
