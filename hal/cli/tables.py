"""Tables that fit the console: columns that must stay whole do, or the table becomes lines of words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2
NARROWEST = 16
"""To which a column may be folded before the table becomes lines."""

Row = Sequence[Text | str]


def fit_table(
    headers: Sequence[str], rows: Sequence[Row], console: Console, *, indent: int = 2, folded: Collection[int] = (0,)
) -> RenderableType:
    """The rows as a table of which some columns fold and the others stay whole; as lines of words where that is too wide."""
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max((cell.cell_len for cell in column), default=0) for column in zip(map(Text, headers), *cells, strict=True)]
    least = [min(width, NARROWEST) if place in folded else width for place, width in enumerate(widths)]
    if sum(least) + GAP * (len(least) - 1) > console.width - indent:
        return Padding(Group(*(_line(headers, row) for row in cells)), (0, 0, 0, indent), expand=False)
    table = Table(box=None, show_header=any(headers), header_style="dim", pad_edge=False, padding=(0, GAP, 0, 0))
    for place, name in enumerate(headers):
        table.add_column(name, no_wrap=place not in folded, overflow="fold", min_width=least[place])
    for row in cells:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, indent), expand=False)


def _line(headers: Sequence[str], row: Sequence[Text]) -> RenderableType:
    named = [(f"{name} " if name else "", cell) for name, cell in zip(headers[1:], row[1:], strict=True) if cell.plain]
    words = Text(", ").join(Text.assemble((name, "dim"), cell) for name, cell in named)
    return Group(row[0], Padding(words, (0, 0, 0, 2), expand=False))
