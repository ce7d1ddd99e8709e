"""Whether an arch can hold the tiles that a layer's calls need, known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from hal.common.reason import Reason
from hal.common.request import Request

from .tiles import Machine, Widths, choose_tile, split_width

# Query rows per KV head of the two extremes: one token of one head, and a tile that is full.
_FEW, _MANY = 1, 1 << 20


def explain_tiles(machine: Machine, request: Request) -> tuple[Reason, ...]:
    """The reasons why no tile of some call fits the arch; empty when every call of the request's family has one."""
    reasons = []
    for call, widths in needed_tiles(request):
        for rows in (_FEW, _MANY):
            tile = choose_tile(machine, call, widths, request.dtype, rows)
            if isinstance(tile, Reason):
                reasons.append(tile)
    return tuple(dict.fromkeys(reasons))


def needed_tiles(request: Request) -> Iterator[tuple[str, Widths]]:
    """(call, widths) of every kernel with a tile that a layer runs."""
    layer = request.layer
    mla = layer.mla
    if mla is None:
        main, rest = split_width(layer.head_dim)
        yield "attend", Widths(main=main, rest=rest, value=layer.v_head_dim)
        return
    latent = Widths(main=mla.kv_lora_rank, rest=mla.qk_rope_head_dim, splits=True)
    main, rest = split_width(layer.head_dim)
    yield "attend", Widths(main=main, rest=rest, value=layer.v_head_dim)
    yield "sparse" if layer.indexer is not None else "latent", latent
    if layer.indexer is not None:
        yield "scores", Widths(main=layer.indexer.head_dim, sums_values=False)
