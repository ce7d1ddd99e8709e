"""How wide a block table is."""

from __future__ import annotations


def block_table_width(max_model_len: int, block_size: int, dcp: int = 1) -> int:
    """Columns of a block table: pages of the longest request, padded so that a row covers whole runs of 128 tokens.

    Some paged kernels read a table row in runs of 128 tokens; this is the one place that decides its width.
    """
    pages = -(-max_model_len // (block_size * dcp))
    run = max(1, 128 // block_size)
    return -(-pages // run) * run
