"""A call that attends with a sink, whether or not its backend applies it inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .capabilities import SINK_CALLS
from .errors import BackendError

if TYPE_CHECKING:
    import torch

    from .backend import Backend

    Attended = tuple[torch.Tensor, torch.Tensor | None]


def take_sinks(backend: Backend, call: str, apply_sink: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A backend's call that takes a sink if any call may: as it is with inner_sinks, else apply_sink does it afterwards."""
    run: Callable[..., Any] = getattr(backend, call)
    declared = backend.capabilities
    if call not in SINK_CALLS or (declared is not None and call in declared.inner_sinks):
        return run
    return _with_sink(run, apply_sink)


def require_lse(lse: torch.Tensor | None) -> torch.Tensor:
    """The LSE that a call was asked for; BackendError where its kernel gave none."""
    if lse is None:
        raise BackendError("a kernel was asked for the LSE of its results and gave none; results cannot be merged without it")
    return lse


def _with_sink(attend: Callable[..., Attended], apply_sink: Callable[..., torch.Tensor]) -> Callable[..., Attended]:
    def run(
        *arguments: Any,
        sink: torch.Tensor | None = None,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
        **options: Any,
    ) -> Attended:
        if sink is None:
            return attend(*arguments, need_lse=need_lse, out=out, **options)
        result, lse = attend(*arguments, need_lse=True, **options)
        result = apply_sink(result, require_lse(lse), sink)
        return result if out is None else out.copy_(result), lse if need_lse else None

    return run
