"""Cache rows of the token ids that an indexer chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_numbers
from hal.common.contract.errors import BatchError
from hal.common.contract.parallel import Parallel

from .launch import Launch
from .operands import check_rows

if TYPE_CHECKING:
    import torch

_MAX_COLUMNS = 1024


def rows_launch(
    topk: Any,
    req_id: Any,
    block_table: Any,
    seq_lens: Any,
    rows: Any,
    valid: Any,
    block_size: int,
    page_stride: int,
    parallel: Parallel,
) -> Launch:
    """topk int32 [tokens, width] into dense rows int32 [tokens, width] and valid int32 [tokens]."""
    tokens, width = topk.shape
    return Launch(
        kernel="rows:find_rows",
        grid=(tokens,),
        tensors={"topk": topk, "rows": rows},
        tables={"req_id": req_id, "block_table": block_table, "seq_lens": seq_lens, "valid": valid},
        strides={
            "topk_token": topk.stride(0),
        },
        numbers={
            "table_row": block_table.stride(0),
            "page_stride": page_stride,
            "width": width,
            "table_width": block_table.shape[1],
            "rank": parallel.dcp_rank,
        },
        constants={
            "PAGE": block_size,
            "RANKS": parallel.dcp,
            "RUN": parallel.interleave if parallel.dcp > 1 else 1,
            "BLOCK": min(_MAX_COLUMNS, 1 << (max(width, 16) - 1).bit_length()),
        },
        num_warps=4,
    )


def rows_from_topk(
    run: Callable[[Launch], None],
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    page_stride: int,
    parallel: Parallel,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows int32 [tokens, width], valid ones first and in their order, and their count int32 [tokens]."""
    if parallel.dcp > 1 and block_size % parallel.interleave:
        raise BatchError(f"block_size {block_size} is no multiple of the DCP interleave {parallel.interleave}")
    topk, block_table = dense_numbers("topk", topk, 2), dense_numbers("block_table", block_table, 2)
    req_id, seq_lens = dense_numbers("req_id", req_id), dense_numbers("seq_lens", seq_lens)
    check_rows(topk, req_id, block_table, seq_lens, block_size, page_stride)
    rows = topk.new_empty(topk.shape)
    valid = topk.new_empty(topk.shape[:1])
    if not seq_lens.shape[0] or not topk.numel():
        return rows.fill_(-1), valid.zero_()
    run(rows_launch(topk, req_id, block_table, seq_lens, rows, valid, block_size, page_stride, parallel))
    return rows, valid
