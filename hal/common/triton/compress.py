"""Compressed entries of a step: mixed of its tokens' states and of earlier ones, then written as any other part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hal.common.contract.compressor import check_states
from hal.common.contract.dense import dense_numbers, dense_rows

from .cache import filled, write_launch
from .launch import Launch
from .operands import check_slots
from .stored import Stored, store_of

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import CompressedBatch, KVCache
    from hal.common.contract.compressor import Compressor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What entries are made of, in fp32: kv and score [tokens, groups * width], the latter with their positions' biases.

    norm: [width], or None. cos, sin: dense [tokens, pairs], or None. page: tokens of one.
    """

    kv: Any
    score: Any
    states: Stored
    width: int
    ratio: int
    page: int
    norm: Any = None
    eps: float = 0.0
    cos: Any = None
    sin: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a step's tokens are: entry_slots and positions int64 [tokens], the others int32, as compress_states has them."""

    entry_slots: Any
    query_start_loc: Any
    req_id: Any
    positions: Any
    block_table: Any


def mix_launch(mixture: Mixture, places: Places, mixed: Any) -> Launch:
    """The entries of tokens that close one, into dense fp32 mixed [tokens, width]."""
    kv, score, states, table = mixture.kv, mixture.score, mixture.states, places.block_table
    pairs = 0 if mixture.cos is None else mixture.cos.shape[1]
    return Launch(
        kernel="compress:mix_states",
        grid=(mixed.shape[0],),
        tensors={"kv": kv, "score": score, "states": states.rows, "mixed": mixed},
        tables={
            "entry_slots": places.entry_slots,
            "q_start_loc": places.query_start_loc,
            "req_id": places.req_id,
            "positions": places.positions,
            "block_table": table,
            "norm": score if mixture.norm is None else mixture.norm,
            "cos": score if mixture.cos is None else mixture.cos,
            "sin": score if mixture.sin is None else mixture.sin,
        },
        strides={"kv_token": kv.stride(0), "score_token": score.stride(0), "states_row": states.row},
        numbers={
            "table_row": table.stride(0),
            "table_width": table.shape[1],
            "page_stride": states.page_stride,
            "num_pages": states.pages,
            "eps": float(mixture.eps),
        },
        constants={
            "RATIO": mixture.ratio,
            "GROUPS": states.layout.widths[0] // mixture.width,
            "WIDTH": mixture.width,
            "PAGE": mixture.page,
            "KEPT": states.block_size,
            "HAS_NORM": mixture.norm is not None,
            "PAIRS": pairs,
            "BLOCK": _covering(mixture.width),
            "BLOCK_P": _covering(pairs),
        },
        num_warps=4,
    )


def compress_states(
    run: Callable[[Launch], None],
    compressor: Compressor,
    states: KVCache,
    entries: KVCache,
    batch: CompressedBatch,
    ratio: int,
) -> None:
    """Write an entry for every token that has a slot for one, and the states that have a slot."""
    import torch

    check_states(compressor, states, entries, batch, ratio)
    positions = batch.positions
    for slots in (batch.state_slots, batch.entry_slots):
        check_slots(slots)
    if not positions.shape[0]:
        return
    score = dense_rows(compressor.score.float() + compressor.position_bias.float()[positions % ratio])
    mixture = Mixture(
        kv=dense_rows(compressor.kv.float()),
        score=score,
        states=store_of(states),
        width=entries.layout.widths[0],
        ratio=ratio,
        page=entries.block_size * ratio,
        norm=_dense(compressor.norm_weight),
        eps=compressor.eps,
        cos=_dense(compressor.cos),
        sin=_dense(compressor.sin),
    )
    places = Places(
        entry_slots=batch.entry_slots.contiguous(),
        query_start_loc=dense_numbers("query_start_loc", batch.query_start_loc),
        req_id=dense_numbers("req_id", batch.req_id),
        positions=positions.long().contiguous(),
        block_table=dense_numbers("block_table", batch.block_table, 2),
    )
    mixed = score.new_empty((positions.shape[0], mixture.width), dtype=torch.float32)
    run(mix_launch(mixture, places, mixed))
    # States last: a new one may lie where an earlier one was read.
    run(write_launch(mixture.states, [mixture.kv, score], batch.state_slots.contiguous()))
    parts = mixed.split(entries.layout.widths, dim=1)
    run(write_launch(store_of(entries), filled(entries.layout, parts), places.entry_slots))


def _dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.float().contiguous()


def _covering(width: int) -> int:
    return 1 << (max(width, 1) - 1).bit_length()
