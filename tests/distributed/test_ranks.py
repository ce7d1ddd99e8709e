"""Groups of gloo ranks in processes of their own: each is started once and runs every check; a hang is a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .checks import list_checks

ROOT = Path(__file__).parents[2]
SECONDS = 240
NAMES = [(ranks, name) for ranks in (2, 4) for name in list_checks(ranks)]


@cache
def run_group(ranks: int) -> list[dict[str, str]]:
    """What became of each check on each rank."""
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"rank{rank}.json" for rank in range(ranks)]
        logs = [path.with_suffix(".log").open("w+") for path in outputs]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.worker", str(rank), str(ranks), f"{folder}/store", str(output)],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank, (output, log) in enumerate(zip(outputs, logs, strict=True))
        ]
        deadline = time.monotonic() + SECONDS
        try:
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                process.kill()
        found = []
        for output, log in zip(outputs, logs, strict=True):
            log.seek(0)
            found.append(json.loads(output.read_text()) if output.exists() else {"": log.read()})
            log.close()
        return found


@pytest.mark.parametrize(("ranks", "name"), NAMES, ids=[f"{ranks}ranks-{name}" for ranks, name in NAMES])
def test_ranks(ranks: int, name: str) -> None:
    for rank, found in enumerate(run_group(ranks)):
        if name not in found:
            last = "; ".join(f"{check}: {result}" for check, result in list(found.items())[-1:])
            pytest.fail(f"rank {rank} did not get as far as {name} in {SECONDS} s; the last it reports is {last or 'nothing'}")
        assert found[name] == "passed", f"rank {rank}: {found[name]}"
