"""Which launches compile, and whether one does that nobody planned for."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hal.config.runs import without_ids

from .environment import read_variable
from .errors import BackendError
from .quiet import describe_error
from .registry import find_backend

if TYPE_CHECKING:
    from .backend import Backend
    from .plan import Plan
    from .request import Request

_logger = logging.getLogger(__name__)


def list_keys(plan: Plan) -> tuple[Hashable, ...]:
    """The key of every launch that compiles for a plan, once each; BackendError where a backend promises some and lists none."""
    keys: dict[Hashable, None] = {}
    for name, requests in _compiled(plan):
        try:
            own = dict.fromkeys(key for request in requests for key in find_backend(name).list_launches(request))
        except Exception as error:
            raise BackendError(f"{name} does not say which launches compile: {describe_error(error)}") from error
        if not own:
            raise BackendError(f"{name} declares compiled launches and lists none for {plan.device.target}; its list is wrong")
        keys |= own
    return tuple(keys)


class WarmupMonitor:
    """Compiles what a plan lists, then counts the launches that are not on the list."""

    def __init__(self, plan: Plan, opened: Mapping[str, Backend]) -> None:
        self._plan = plan
        self._opened = opened
        self._planned: frozenset[Hashable] | None = None
        self._missed: set[Hashable] = set()
        self.misses = 0

    def warm_up(self) -> None:
        """Compile every launch of the plan's list; launches from now on are compared with it."""
        planned = frozenset(list_keys(self._plan))
        for name, requests in _compiled(self._plan):
            for request in requests:
                self._opened[name].compile_launches(request)
            if self._planned is None:
                self._opened[name].watch_launches(self._compare)
        self._planned = planned

    def _compare(self, key: Hashable) -> None:
        if self._planned is None or key in self._planned:
            return
        self.misses += 1
        if read_variable("HAL_STRICT_WARMUP") == "1":
            raise BackendError(f"a launch compiles that warm_up() did not cover: {key}")
        if key not in self._missed:
            self._missed.add(key)
            _logger.warning("a launch compiles that warm_up() did not cover: %s", key)


def _compiled(plan: Plan) -> Iterator[tuple[str, tuple[Request, ...]]]:
    """Each backend of a plan whose launches compile, with the distinct requests that it serves."""
    served: dict[str, dict[Request, Request]] = {}
    for request, selection in zip(plan.requests, plan.selections, strict=True):
        if request is None or selection is None:
            continue
        # Layers that differ in their ids alone launch the same.
        alike = replace(request, layer=without_ids(request.layer))
        for name in selection.providers.values():
            served.setdefault(name, {}).setdefault(alike, request)
    for name, requests in sorted(served.items()):
        capabilities = find_backend(name).capabilities
        if capabilities is not None and capabilities.compiled_launches:
            yield name, tuple(requests.values())
