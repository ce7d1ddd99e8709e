"""The best columns of scores, and the tokens of chosen pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_numbers, dense_rows

from .launch import Launch
from .operands import check_choice, check_pools

if TYPE_CHECKING:
    import torch

_COLUMNS = 1024


def choose_launch(scores: Any, lengths: Any, topk: Any, k: int) -> Launch:
    """scores fp32 [rows, columns] and lengths int32 [rows] into dense topk int32 [rows, width]."""
    return Launch(
        kernel="topk:choose_columns",
        grid=(scores.shape[0],),
        tensors={"scores": scores},
        tables={"lengths": lengths, "topk": topk},
        strides={},
        numbers={"scores_row": scores.stride(0), "num_columns": scores.shape[1], "k": k, "width": topk.shape[1]},
        constants={"BLOCK": _COLUMNS},
        num_warps=16,
    )


def expand_launch(topk: Any, lengths: Any, tokens: Any, pool: int) -> Launch:
    """topk int32 [rows, pools] and lengths int32 [rows] into dense tokens int32 [rows, width]."""
    return Launch(
        kernel="topk:expand_columns",
        grid=(topk.shape[0],),
        tensors={"topk": topk},
        tables={"lengths": lengths, "tokens": tokens},
        strides={"topk_row": topk.stride(0)},
        numbers={"num_columns": topk.shape[1], "width": tokens.shape[1]},
        constants={"POOL": pool, "BLOCK": _COLUMNS},
        num_warps=4,
    )


def select_topk(run: Callable[[Launch], None], scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int) -> torch.Tensor:
    """int32 [rows, width]: the k best columns below each length in ascending order, equal scores by lower id, then -1."""
    lengths = dense_numbers("lengths", lengths)
    check_choice(scores, lengths, k, width)
    topk = lengths.new_empty((scores.shape[0], width))
    run(choose_launch(dense_rows(scores.float()), lengths, topk, k))
    return topk


def expand_pools(run: Callable[[Launch], None], topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int) -> torch.Tensor:
    """int32 [rows, width]: the tokens of each chosen pool and of the open tail, then -1."""
    topk, lengths = dense_numbers("topk", topk, 2), dense_numbers("lengths", lengths)
    check_pools(topk, lengths, pool, width)
    tokens = topk.new_empty((topk.shape[0], width))
    run(expand_launch(topk, lengths, tokens, pool))
    return tokens
