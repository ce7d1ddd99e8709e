"""A backend whose calls go through hal.ops, so that the conformance suite meets the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hal import ops
from hal.common.contract.backend import Backend, required_calls


def through_operators(backend: type[Backend]) -> type[Backend]:
    """A class with the backend's declaration that makes each call by the operator of that name."""
    calls = {call: _by_operator(call, backend.name) for call in required_calls(backend.capabilities)}
    return type(f"{backend.__name__}Operators", (Backend,), {**_declared(backend), **calls})


def _declared(backend: type[Backend]) -> dict[str, Any]:
    return {"name": f"ops/{backend.name}", "platform": backend.platform, "capabilities": backend.capabilities}


def _by_operator(call: str, backend: str) -> Callable[..., Any]:
    def method(self: Backend, *arguments: Any, **keywords: Any) -> Any:
        return getattr(ops, call)(*arguments, backend=backend, **keywords)

    return method
