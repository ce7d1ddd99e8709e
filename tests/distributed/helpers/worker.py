"""One rank of a group, as a process: python -m tests.distributed.helpers.worker RANK RANKS STORE RESULTS"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from .checks import Check, list_checks


def run_checks(rank: int, ranks: int, store: str, results: str, checks: Mapping[str, Check]) -> None:
    """Run every check and write what became of each at once; after one that fails, ranks may be out of step: it is the last."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    found = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = "passed"
        except Exception:  # noqa: BLE001 - whatever it is belongs in the report
            found[name] = traceback.format_exc()
        # Whole or not at all: a rank may be ended at any moment.
        draft = Path(results).with_suffix(".draft")
        draft.write_text(json.dumps(found))
        draft.replace(results)
        if found[name] != "passed":
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, ranks, store, results = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    run_checks(rank, ranks, store, results, list_checks(ranks))
