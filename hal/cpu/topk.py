"""Choosing the best keys and finding their cache rows."""

from __future__ import annotations

import torch

from hal.common.contract.errors import BatchError, LayoutError
from hal.common.contract.parallel import Parallel, local_position, owner
from hal.common.contract.repeats import forget_repeats

from .checks import check_counts, check_floats, check_integers


def select_topk(scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int) -> torch.Tensor:
    """int32 [tokens, width]: by value descending, then by lower id; NaN counts as -inf, and so does what lies past a length."""
    check_floats("scores", scores, 2)
    check_integers("lengths", lengths, 1)
    num_tokens, num_keys = scores.shape
    check_counts("tokens of scores and lengths", scores=num_tokens, lengths=lengths.shape[0])
    if k < 0:
        raise LayoutError(f"{k} keys to choose; expected at least 0")
    if k > width:
        raise LayoutError(f"{k} keys to choose do not fit in rows of {width}; widen the rows")
    chosen = torch.full((num_tokens, width), -1, dtype=torch.int32)
    count = min(k, num_keys)
    if not num_tokens or not count:
        return chosen
    lengths = lengths.long().clamp(min=0, max=num_keys)
    # Rows of scores are mostly as long as what their token sees, as those of decodes are.
    bounds = lengths if int(lengths.min()) < num_keys else None
    ranked = torch.nan_to_num(scores, nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    if bounds is not None:
        ranked.masked_fill_(torch.arange(num_keys)[None, :] >= bounds[:, None], float("-inf"))
    ids = _best_ids(ranked, bounds, count)
    if bounds is not None:
        # A key that scored -inf inside its length is still a key; one past the length is not.
        ids = torch.where(torch.arange(count)[None, :] < bounds[:, None], ids, -1)
    chosen[:, :count] = ids
    return chosen


def _best_ids(scores: torch.Tensor, bounds: torch.Tensor | None, count: int) -> torch.Tensor:
    # One more than asked for shows whether the last place is tied.
    more = min(count + 1, scores.shape[1])
    values, ids = torch.topk(scores, more, dim=1)
    # torch.topk orders equal values as it pleases: rows that have any inside their length are sorted again.
    is_equal = values[:, 1:] == values[:, :-1]
    is_tied = is_equal if bounds is None else is_equal & (torch.arange(more - 1)[None, :] < bounds[:, None])
    ids = ids[:, :count]
    if bool(is_tied.any()):
        # A tie across the last place may be with any other key; one before it is between keys that are chosen anyway.
        is_doubtful, is_cut = is_tied.any(1), is_equal[:, count - 1 :].any(1)
        cut, inner = (is_doubtful & is_cut).nonzero().squeeze(1), (is_doubtful & ~is_cut).nonzero().squeeze(1)
        if cut.numel():
            ids[cut] = scores[cut].sort(dim=1, descending=True, stable=True).indices[:, :count]
        if inner.numel():
            by_id = ids[inner].sort(dim=1).values
            ids[inner] = by_id.gather(1, scores[inner].gather(1, by_id).sort(dim=1, descending=True, stable=True).indices)
    return ids


def expand_pools(topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, distinct: bool) -> torch.Tensor:
    """int32 [tokens, width]: the tokens of each chosen full pool, in the order of the choice, those of the open tail, then -1."""
    check_integers("topk", topk, 2)
    check_integers("lengths", lengths, 1)
    num_tokens, num_pools = topk.shape
    check_counts("tokens of topk and lengths", topk=num_tokens, lengths=lengths.shape[0])
    if pool < 1:
        raise LayoutError(f"pools of {pool} tokens; expected at least 1")
    if num_pools * pool + pool - 1 > width:
        raise LayoutError(f"{num_pools} pools of {pool} tokens and an open tail do not fit in rows of {width}; widen the rows")
    if not distinct:
        topk = forget_repeats(topk)
    lengths = lengths.long().clamp(min=0)[:, None]
    full = lengths // pool
    within = torch.arange(pool)
    chosen = torch.where((topk >= 0) & (topk < full), topk.long(), -1)
    history = torch.where(chosen[..., None] >= 0, chosen[..., None] * pool + within, -1).flatten(1)
    tail = full * pool + within[:-1]
    tokens = torch.cat([history, torch.where(tail < lengths, tail, -1)], dim=1).to(torch.int32)
    expanded = tokens.new_full((num_tokens, width), -1)
    order = (tokens < 0).to(torch.uint8).sort(dim=1, stable=True).indices
    expanded[:, : tokens.shape[1]] = tokens.gather(1, order)
    return expanded


def rows_from_topk(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    rows_per_page: int,
    parallel: Parallel,
    distinct: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows int32 [tokens, width] with the valid ones first, in their order, and how many there are."""
    _check_rows(topk, req_id, block_table, seq_lens, block_size, rows_per_page)
    if parallel.dcp > 1 and block_size % parallel.interleave:
        raise BatchError(f"block_size {block_size} is no multiple of the DCP interleave {parallel.interleave}")
    if not topk.numel() or not block_table.numel():
        return torch.full_like(topk, -1, dtype=torch.int32), topk.new_zeros(topk.shape[0], dtype=torch.int32)
    if not distinct:
        topk = forget_repeats(topk)
    # A token of no request has no key, and neither has what lies past the table.
    request = req_id.long().clamp(min=0, max=seq_lens.shape[0] - 1)
    bounds = torch.where(request == req_id, seq_lens[request], 0)
    if parallel.dcp == 1:
        bounds = bounds.clamp(max=block_table.shape[1] * block_size)
    least, greatest = topk.aminmax(dim=1)
    if parallel.dcp == 1 and int(least.min()) >= 0 and bool((greatest < bounds).all()):
        # Most often every token has a full choice and every page is there.
        rows = _place(topk.long(), block_table, request, block_size, rows_per_page)
        if int(rows.min()) >= 0:
            return rows.to(torch.int32), topk.new_full(topk.shape[:1], topk.shape[1], dtype=torch.int32)
    valid = (topk >= 0) & (topk < bounds[:, None])
    ids = torch.where(valid, topk, 0).long()
    if parallel.dcp > 1:
        valid &= owner(ids, parallel) == parallel.dcp_rank
        ids = local_position(ids, parallel)
        valid &= ids < block_table.shape[1] * block_size
        ids = torch.where(valid, ids, 0)
    rows = _place(ids, block_table, request, block_size, rows_per_page)
    valid &= rows >= 0
    rows = torch.where(valid, rows, -1)
    count = valid.sum(1, dtype=torch.int32)
    if int(count.min()) < topk.shape[1]:
        order = (~valid).to(torch.uint8).sort(dim=1, stable=True).indices
        rows = rows.gather(1, order)
    return rows.to(torch.int32), count


def _place(
    ids: torch.Tensor, block_table: torch.Tensor, request: torch.Tensor, block_size: int, rows_per_page: int
) -> torch.Tensor:
    """The row of each id [tokens, width] inside its request's table, negative where the page is missing."""
    page = ids // block_size
    block = block_table[request[:, None], page].long()
    return (block * rows_per_page).add_(ids).sub_(page, alpha=block_size)


def _check_rows(
    topk: torch.Tensor,
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    rows_per_page: int,
) -> None:
    check_integers("topk", topk, 2)
    check_integers("req_id", req_id, 1)
    check_integers("block_table", block_table, 2)
    check_integers("seq_lens", seq_lens, 1)
    check_counts("tokens of topk and req_id", topk=topk.shape[0], req_id=req_id.shape[0])
    check_counts("requests of block_table and seq_lens", block_table=block_table.shape[0], seq_lens=seq_lens.shape[0])
    if not 1 <= block_size <= rows_per_page:
        raise BatchError(f"block_size {block_size} does not fit in {rows_per_page} rows per page; expected 1 to as many")
