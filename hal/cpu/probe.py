"""The machine's own processor as a device row."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

INFO = Path("/proc/cpuinfo")


def probe() -> tuple[list[dict[str, Any]], list[str]]:
    """One row, always, and a sentence with the processor's name and core count."""
    name = _processor_name()
    row = {"arch": "cpu", "name": name, "memory_bytes": _memory_bytes(), "torch_device": "cpu"}
    return [row], [f"{name}, {os.cpu_count() or 1} cores"]


def _processor_name() -> str:
    try:
        lines = INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
