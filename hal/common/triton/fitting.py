"""Whether an arch can hold the tiles that a layer's calls need, known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from hal.common.contract.layouts import layer_layout
from hal.common.contract.reason import Reason
from hal.common.contract.request import Request

from .tiles import Widths, choose_tile, latent_widths, read_machine, split_width

# Query rows per KV head of the two extremes: one token of one head, and a tile that is full.
_FEW, _MANY = 1, 1 << 20


def explain_tiles(package: str, request: Request) -> tuple[Reason, ...]:
    """The reasons why no tile of some call fits the arch; empty when every call of the request's family has one.

    package: the platform's, whose launch.toml has the candidates.
    """
    return _explain(package, request.device.arch, request.dtype, tuple(needed_tiles(request)))


@cache
def _explain(package: str, arch: str, dtype: str, needed: tuple[tuple[str, Widths], ...]) -> tuple[Reason, ...]:
    machine = read_machine(package, arch)
    tiles = [choose_tile(machine, call, widths, dtype, rows) for call, widths in needed for rows in (_FEW, _MANY)]
    return tuple(dict.fromkeys(tile for tile in tiles if isinstance(tile, Reason)))


def needed_tiles(request: Request) -> Iterator[tuple[str, Widths]]:
    """(call, widths) of every kernel with a tile that a layer runs."""
    layer = request.layer
    if layer.kind == "compressed":
        known = request.kv_layout if request.kv_layout in layer.kv_layouts else "auto"
        yield "sparse", latent_widths(layer_layout(layer, known, request.dtype))
        if layer.indexer is not None:
            yield "scores", Widths(main=layer.indexer.head_dim, sums_values=False)
        return
    if layer.mla is None:
        main, rest = split_width(layer.head_dim)
        yield "attend", Widths(main=main, rest=rest, value=layer.v_head_dim)
        return
    known = request.kv_layout if request.kv_layout in layer.kv_layouts else "auto"
    latent = latent_widths(layer_layout(layer, known, request.dtype))
    main, rest = split_width(layer.head_dim)
    yield "attend", Widths(main=main, rest=rest, value=layer.v_head_dim)
    yield "sparse" if layer.indexer is not None else "latent", latent
    if layer.indexer is not None:
        yield "scores", Widths(main=layer.indexer.head_dim, sums_values=False)
