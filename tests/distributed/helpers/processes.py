"""Processes that run at the same time, for so long and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).parents[3]


def run_together(commands: Sequence[Sequence[str]], seconds: float) -> list[str]:
    """What each Python command wrote; those that still run after so many seconds are killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        logs = [stack.enter_context(TemporaryFile("w+")) for _ in commands]
        processes = [
            subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
            for command, log in zip(commands, logs, strict=True)
        ]
        deadline = time.monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            process.kill()
            process.wait()
        for log in logs:
            log.seek(0)
        return [log.read() for log in logs]
