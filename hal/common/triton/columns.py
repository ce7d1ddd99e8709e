"""The columns of a row: whose part they are, and how many one program of a kernel works on."""

from __future__ import annotations

from hal.common.contract.layouts import Layout

_MAX_COLUMNS = 1024


def part_constants(layout: Layout) -> dict[str, int | bool]:
    """How wide a row's parts are, by the names that kernels have for them; 0 for a part that there is not."""
    return {"FIRST": layout.widths[0], "SECOND": layout.widths[1] if len(layout.widths) > 1 else 0}


def columns_at_once(layout: Layout) -> int:
    """The least power of two that covers a row, up to a limit."""
    return min(_MAX_COLUMNS, 1 << (max(sum(layout.widths), 1) - 1).bit_length())


def column_tiles(layout: Layout) -> int:
    """How many programs it takes to cover a row."""
    return -(-sum(layout.widths) // columns_at_once(layout))
