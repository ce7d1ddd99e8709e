"""The cells as GitHub's workflows take them: one line of JSON, of which fromJSON makes a job's matrix."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .ci import CiCell


def github_matrix(hosted: Iterable[CiCell], hardware: Iterable[CiCell]) -> str:
    """{"hosted": {"include": [...]}, "hardware": {"include": [...]}} on one line, for a step's output."""
    groups = {"hosted": hosted, "hardware": hardware}
    return json.dumps({name: {"include": [_to_entry(cell) for cell in cells]} for name, cells in groups.items()})


def _to_entry(cell: CiCell) -> dict[str, Any]:
    """One job: lists where an expression indexes or passes them on, texts where a shell's line takes them."""
    return {
        "name": cell.name,
        "platform": cell.platform,
        "runner": list(cell.runner),
        "archs": list(cell.archs),
        "torch_index": cell.torch_index,
        "extras": ",".join(cell.extras),
        "software": dict(cell.software),
        "suites": list(cell.suites),
        "compile_targets": list(cell.compile_targets),
        "timeout_minutes": cell.timeout_minutes,
        "run": cell.command,
    }
