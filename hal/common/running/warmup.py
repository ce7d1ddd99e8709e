"""Whether a launch compiles that nobody planned for."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BackendError
from hal.common.contract.launches import list_compiled

if TYPE_CHECKING:
    from hal.common.contract.backend import Backend
    from hal.common.contract.plan import Plan

_logger = logging.getLogger(__name__)


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
        plan = self._plan
        planned = frozenset(plan.warmup_keys())
        for name, requests in list_compiled(plan.requests, plan.selections, plan.backends):
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
