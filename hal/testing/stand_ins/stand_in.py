"""What a platform says of one library that it can stand in for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Make = Callable[[str, str], Mapping[str, Callable[..., object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A library as it would behave.

    make: the functions by name, of an arch and a release; each takes its arguments as one namespace. flags: attributes of
    every module, with their values.
    """

    make: Make
    flags: Mapping[str, object] = field(default_factory=dict)
