"""An engine that frees the pages behind windows, and spoils what it frees."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import hal
from hal.common.stepping.page_tables import RequestPages, stack_tables

from .engine import Engine, Running, Step


class WindowEngine(Engine):
    """An engine whose groups have pools of their own; what is freed becomes NaN, and is soon another request's."""

    def __init__(self, shape: Any, blocks: Any, **options: Any) -> None:
        super().__init__(shape, num_blocks=blocks, **options)
        self.held: dict[int, RequestPages] = {}
        self.num_freed = 0

    def schedule(self, step: Step, **batch: Any) -> hal.Batch:
        for name, new in step:
            running = self.requests.setdefault(name, Running())
            pages = self.held.setdefault(name, RequestPages(self.plan, self.attention.pools))
            before = pages.tables.copy()
            self.num_freed += pages.release_behind_window(running.length)
            self._poison(before, pages.tables)
            running.length += new
            pages.grow(running.length)
        tables = stack_tables([self.held[name] for name, _ in step])
        return hal.Batch([new for _, new in step], [self.requests[name].length for name, _ in step], tables, **batch)

    def _poison(self, before: np.ndarray, after: np.ndarray) -> None:
        for spec in self.plan.cache_specs():
            row = spec.group if len(before) > 1 else 0
            freed = before[row][(before[row] >= 0) & (after[row] < 0)]
            self.attention.caches[spec.key].storage[freed.tolist()] = torch.nan
