"""The caches of a request's layer, as layouts and as what stands for them in planned launches."""

from __future__ import annotations

from hal.common.contract.layouts import Layout, layer_index_layout, layer_layout
from hal.common.contract.request import Request
from hal.config.sizes import QUANTISED_INDEX

from .stand_in import stand_in
from .stored import Stored

# A count of no other consequence than its class: more than 1 and no multiple of 16.
_PAGES = 515


def kv_layout(request: Request) -> Layout:
    """The layout of a layer's keys and values on one rank; LayoutError for one that its kind cannot have."""
    return layer_layout(request.layer, request.kv_layout, request.dtype, request.parallel.tp, request.device.fp8)


def index_keys_layout(request: Request) -> Layout:
    """The layout of a layer's index keys beside it; LayoutError where it owns no indexer."""
    name = "indexer_fp8" if request.kv_layout in QUANTISED_INDEX else "indexer"
    return layer_index_layout(request.layer, request.dtype, name, request.device.fp8)


def stand_ins(layout: Layout, block_size: int) -> tuple[Stored, ...]:
    """A cache in a layout as hal allocates it, once for every number of scales that may lie outside it."""
    if layout.is_flat:
        dtype = "uint8" if layout.is_quantised else layout.dtype
        rows = stand_in(dtype, _PAGES, layout.width)
        row = layout.width
    else:
        row = layout.page_bytes(block_size)
        rows = stand_in("uint8", _PAGES, row)
    return tuple(
        Stored(
            layout=layout,
            rows=rows,
            row=row,
            block_size=block_size,
            page_stride=block_size,
            pages=_PAGES,
            scales=None if shape is None else stand_in("float32", *shape),
        )
        for shape in layout.scale_shapes or (None,)
    )
