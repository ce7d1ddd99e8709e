"""Groups of gloo ranks in processes of their own: each is started once and runs every check; a hang is a failure."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .helpers.checks import list_checks
from .helpers.processes import run_together

SECONDS = 240
NAMES = [(ranks, name) for ranks in (2, 4) for name in list_checks(ranks)]


@cache
def run_group(ranks: int) -> list[dict[str, str]]:
    """What became of each check on each rank."""
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"rank{rank}.json" for rank in range(ranks)]
        commands = [
            ["-m", "tests.distributed.helpers.worker", str(rank), str(ranks), f"{folder}/store", str(output)]
            for rank, output in enumerate(outputs)
        ]
        logs = run_together(commands, SECONDS)
        return [
            json.loads(output.read_text()) if output.exists() else {"start": log}
            for output, log in zip(outputs, logs, strict=True)
        ]


@pytest.mark.parametrize(("ranks", "name"), NAMES, ids=[f"{ranks}ranks-{name}" for ranks, name in NAMES])
def test_every_rank_of_a_group_passes_the_check(ranks: int, name: str) -> None:
    for rank, found in enumerate(run_group(ranks)):
        if name not in found:
            last = "; ".join(f"{check}: {result}" for check, result in list(found.items())[-1:])
            pytest.fail(f"rank {rank} did not get as far as {name} in {SECONDS} s; the last it reports is {last or 'nothing'}")
        assert found[name] == "passed", f"rank {rank}: {found[name]}"


def test_ranks_that_hang_are_ended() -> None:
    started = time.monotonic()
    wait = "import time; print('waiting', flush=True); time.sleep(600)"
    written = run_together([["-c", wait], ["-c", "print('done')"]], 2)
    assert written[1] == "done\n"
    assert time.monotonic() - started < 60
