"""Finding a vendor's functions, and calling them with what their release takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from typing import Any

from hal.common.contract.errors import BackendError

from .call import VendorCall, fit_arguments

Found = tuple[Callable[..., Any], inspect.Signature]


class AbsentError(BackendError):
    """A library is not there at all, as against one that is there and does not load."""


class InterfaceError(AbsentError):
    """A library is there in a release without the function that is called, under the same name."""


class Resolver:
    """One backend's vendor functions, each looked up and inspected once."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}

    def call(self, call: VendorCall) -> Any:
        """What the function returns; BackendError where it is not there, does not take the arguments, or raises."""
        function, signature = self.find(call.target, *call.other_targets)
        kwargs = fit_arguments(call, signature)
        try:
            return function(**kwargs)
        except Exception as error:
            raise BackendError(f"{call.target} refused a call: {type(error).__name__}: {error}") from error

    def find(self, target: str, *other_targets: str) -> Found:
        """The first of the targets that exists, and its signature.

        AbsentError where none does; BackendError, chained to the cause, where one exists and does not load.
        """
        if target not in self._found:
            self._found[target] = _find((target, *other_targets))
        return self._found[target]

    def takes(self, argument: str, target: str, *other_targets: str) -> bool:
        """Whether the function that is there has an argument."""
        return argument in self.find(target, *other_targets)[1].parameters


def _find(targets: tuple[str, ...]) -> Found:
    absent: BackendError | None = None
    for target in targets:
        try:
            function = _load(target)
        except AbsentError as error:
            absent = absent or error
            continue
        try:
            return function, inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise BackendError(f"{target} has no signature to fit a call to: {error}") from error
    raise absent or AbsentError("no target was given")


def _load(target: str) -> Callable[..., Any]:
    name, _, qualname = target.partition(":")
    module = load_module(name)
    try:
        found: Callable[..., Any] = reduce(getattr, qualname.split("."), module)
    except AttributeError as error:
        raise AbsentError(f"{name} is installed and has no {qualname}: {error}") from error
    return found


def load_module(name: str) -> Any:
    """The module; AbsentError where it or a package above it is not there, BackendError, chained, where it does not load."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise AbsentError(f"{name} is not installed") from error
        raise _broken(name, error) from error
    except Exception as error:
        # What a vendor's library raises at import follows no rule: OSError, KeyError and RuntimeError have all been seen.
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> BackendError:
    return BackendError(f"{name} is installed and does not load: {type(error).__name__}: {error}")


def check_flag(module: Any, flag: str, reason: str) -> None:
    """Raise BackendError where a module that always imports says by a flag that its kernels are not there."""
    if not getattr(module, flag, False):
        raise BackendError(f"{module.__name__} imports, but {flag} is not true: {getattr(module, reason, 'no reason given')}")


def check_interface(target: str, signature: inspect.Signature, foreign: Sequence[str]) -> None:
    """Raise InterfaceError where a function takes an argument that only releases of another interface take."""
    strange = [name for name in foreign if name in signature.parameters]
    if strange:
        raise InterfaceError(
            f"the installed {target} takes {', '.join(strange)}: it is of a release without the kernels that this backend calls; "
            "install one that has them, or choose another backend"
        )
