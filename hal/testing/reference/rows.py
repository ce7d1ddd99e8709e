"""Cache rows of request-local token ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hal.common.contract.errors import BatchError
from hal.common.contract.parallel import Parallel

from .padding import pad_lists


def rows_from_topk(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    block_size: int,
    rows_per_page: int | None = None,
    parallel: Parallel,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows int32 [tokens, width] in the order of their ids, once each, -1 after, and their count int32 [tokens].

    seq_lens are the requests' whole lengths; the table holds this rank's pages, block_size of its own tokens on each.
    """
    if parallel.dcp > 1 and block_size % parallel.interleave:
        raise BatchError(f"block_size {block_size} is no multiple of the DCP interleave {parallel.interleave}")
    tables, lengths = block_table.tolist(), seq_lens.tolist()
    stride = block_size if rows_per_page is None else rows_per_page
    lists = []
    for ids, request in zip(topk.tolist(), req_id.tolist(), strict=True):
        found = [
            _find_row(token, tables[request], block_size, stride, parallel)
            for token in dict.fromkeys(ids)
            if 0 <= token < lengths[request]
        ]
        lists.append([row for row in found if row is not None])
    counts = torch.tensor([len(rows) for rows in lists], dtype=torch.int32)
    return pad_lists(lists, topk.shape[1]), counts


def _find_row(token: int, table: Sequence[int], block_size: int, stride: int, parallel: Parallel) -> int | None:
    """The row of one token, None where it is another rank's or on no page of the table."""
    run, ranks = parallel.interleave, parallel.dcp
    if token // run % ranks != parallel.dcp_rank:
        return None
    local = token // (run * ranks) * run + token % run
    column = local // block_size
    if column >= len(table) or table[column] < 0:
        return None
    return table[column] * stride + local % block_size
