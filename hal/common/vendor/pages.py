"""Pages and rows that a library would look up and that are not there."""

from __future__ import annotations

from dataclasses import replace

import torch

from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BackendError


def require_pages(batch: PagedBatch, cache: KVCache, window: int | None) -> PagedBatch:
    """The batch, in which no query sees a key on a page that its table misses, a column past the table among them.

    Libraries have no word for such a page, so they cannot leave out its keys alone. The builder's batches are so already. Of
    any other a request that misses one sees no key at all: BackendError instead where the host can see it, or with HAL_DEBUG=1.
    """
    if batch.memo is not None:
        return batch
    is_page = (batch.block_table >= 0) & (batch.block_table < cache.num_pages)
    query_lens = batch.query_start_loc[1:] - batch.query_start_loc[:-1]
    stops = -(-batch.seq_lens // cache.block_size) * (query_lens > 0)
    first = 0 if window is None else (batch.seq_lens - query_lens - (window - 1)).clamp(min=0) // cache.block_size
    columns = torch.arange(is_page.shape[1], device=is_page.device)
    is_missing = ~is_page & (columns < stops[:, None]) & (columns >= torch.as_tensor(first, device=is_page.device).view(-1, 1))
    is_hidden = is_missing.any(dim=1) | (stops > is_page.shape[1])
    if _can_see(is_hidden) and bool(is_hidden.any()):
        request = int(is_hidden.nonzero()[0])
        column = next(iter(is_missing[request].nonzero().flatten().tolist()), is_page.shape[1])
        raise BackendError(
            f"request {request} has none of the cache's {cache.num_pages} pages in column {column}, which its queries see, and a "
            "library looks it up all the same; give it a page there, or take the portable kernels, which leave its keys out"
        )
    return replace(batch, seq_lens=batch.seq_lens * ~is_hidden)


def check_rows(segment: Segment) -> None:
    """Raise BackendError where the host can see that a list names a row among its valid ones that the cache does not have.

    Under HAL_DEBUG=1 other devices' lists are looked at too; else they are taken for what rows_from_topk gives.
    """
    cache, rows, valid = segment
    if not _can_see(rows):
        return
    columns = torch.arange(rows.shape[1], device=rows.device)
    num_rows = cache.rows.shape[0] or cache.num_pages * cache.page_stride
    is_missing = ((rows < 0) | (rows >= num_rows)) & (columns < valid[:, None])
    if bool(is_missing.any()):
        token, column = is_missing.nonzero()[0].tolist()
        raise BackendError(
            f"token {token} has row {int(rows[token, column])} in column {column} of {int(valid[token])} valid ones; the cache "
            f"has rows 0 to {num_rows - 1}, and a library looks any other up all the same, an illegal memory access: "
            "compact the list, as rows_from_topk does"
        )


def _can_see(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu or read_variable("HAL_DEBUG") == "1"
