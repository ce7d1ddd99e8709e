"""One rank of a group that runs models: python -m tests.models.helpers.rank_worker RANK RANKS STORE FOLDER RESULTS"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.distributed.helpers.worker import run_checks

from .rank_cases import list_checks

if __name__ == "__main__":
    rank, ranks, store, folder, results = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    run_checks(rank, ranks, store, results, list_checks(Path(folder)))
