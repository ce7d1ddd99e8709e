"""Two decode-context ranks on the portable kernels, over gloo: what one rank of the CPU gives, and no launch not foreseen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.distributed.helpers.processes import run_together

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)
SECONDS = 240


def test_two_ranks_give_what_one_does(tmp_path: Path) -> None:
    module = "tests.conformance.triton.helpers.rank_worker"
    commands = [["-m", module, str(rank), str(tmp_path / "store"), "cuda:sm_90"] for rank in range(2)]
    for rank, log in enumerate(run_together(commands, SECONDS)):
        assert log.strip().endswith("passed"), f"rank {rank}: {log[-3000:]}"
