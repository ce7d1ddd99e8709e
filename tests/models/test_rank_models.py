"""Two gloo ranks run every family as one rank does; the processes are started once and run every case."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.distributed.helpers.processes import run_together

from .helpers.rank_cases import list_checks

SECONDS = 400
NAMES = list(list_checks(Path()))


@cache
def run_group(ranks: int = 2) -> list[dict[str, str]]:
    """What became of each case on each rank."""
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"rank{rank}.json" for rank in range(ranks)]
        commands = [
            ["-m", "tests.models.helpers.rank_worker", str(rank), str(ranks), f"{folder}/store", folder, str(output)]
            for rank, output in enumerate(outputs)
        ]
        logs = run_together(commands, SECONDS)
        return [
            json.loads(output.read_text()) if output.exists() else {"start": log}
            for output, log in zip(outputs, logs, strict=True)
        ]


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_compute_what_one_does(name: str) -> None:
    for rank, found in enumerate(run_group()):
        if name not in found:
            last = "; ".join(f"{check}: {result}" for check, result in list(found.items())[-1:])
            pytest.fail(f"rank {rank} did not get as far as {name} in {SECONDS} s; the last it reports is {last or 'nothing'}")
        assert found[name] == "passed", f"rank {rank}: {found[name]}"
