"""The report files of hal.matrix: what a suite proved, on what, at which commit, on which day."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .plugins import OWN_DISTRIBUTION
from .proof import SCHEMA


def write_report(path: Path, rows: Sequence[Mapping[str, Any]], commit: str) -> None:
    """The rows as a report file, with hal's version, the commit as it was when the suite started, and the day."""
    date = datetime.now(UTC).date().isoformat()
    head = {"schema": SCHEMA, "hal": version(OWN_DISTRIBUTION), "commit": commit, "date": date}
    path.write_text(json.dumps({**head, "rows": list(rows)}, indent=1) + "\n", encoding="utf-8")


def name_processor() -> str:
    """This machine's processor, as the system names it."""
    return next(_processor_names(), platform.machine())


def _processor_names() -> Iterator[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    yield from (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    if platform.processor():
        yield platform.processor()


def read_commit(root: Path) -> str:
    """The commit of a checkout, with "-dirty" where tracked files differ, reports aside; "unknown" outside of one."""
    try:
        head = _ask_git(root, "rev-parse", "HEAD")
        others = (":/", ":(top,exclude)matrix/report-*.json")
        changed = _ask_git(root, "status", "--porcelain", "--untracked-files=no", "--", *others)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-dirty" if changed else head


def _ask_git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
