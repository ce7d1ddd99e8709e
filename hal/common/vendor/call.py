"""A vendor call as a value, and how it is fitted to the signature that is really there."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hal.common.contract.errors import BackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorCall:
    """What to call, "module:qualname", and with which keyword arguments; nothing is called yet.

    other_targets: where other releases keep the same function. optional: arguments whose absence from an older release
    changes no result, so that they may be left out there.
    """

    target: str
    kwargs: Mapping[str, Any]
    optional: frozenset[str] = frozenset()
    other_targets: tuple[str, ...] = ()


def fit_arguments(call: VendorCall, signature: inspect.Signature) -> dict[str, Any]:
    """The call's arguments without the optional ones that the signature lacks.

    BackendError names an argument that is needed and not taken, or taken without a default and not given.
    """
    taken = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        return dict(call.kwargs)
    missing = sorted(call.kwargs.keys() - taken.keys() - call.optional)
    if missing:
        raise BackendError(
            f"the installed {call.target} has no argument {', '.join(missing)}, which this call cannot do without; "
            "install a release that has it, or choose another backend"
        )
    kwargs = {name: value for name, value in call.kwargs.items() if name in taken}
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise BackendError(
            f"the installed {call.target}{signature} does not take the arguments {', '.join(sorted(kwargs))}: {error}"
        ) from error
    return kwargs
