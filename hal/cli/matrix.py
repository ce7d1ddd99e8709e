"""hal matrix: the support table."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from hal.matrix import read_fleet, support_table

from .console import make_console, print_json


def run_matrix(*, as_json: bool) -> int:
    """0, after printing who serves what on every arch, and how each platform's archs are to be proved."""
    rows, fleet = support_table(), read_fleet()
    if as_json:
        print_json({"support": [asdict(row) for row in rows], "fleet": [asdict(proof) for proof in fleet]})
        return 0
    console = make_console()
    kinds = tuple(rows[0].backends) if rows else ()
    table = Table("target", "part", *kinds, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(row.target, row.part or "-", *(_cell(row.backends[kind]) for kind in kinds))
    console.print(table)
    console.print("\n. no backend is written for it yet; every vendor library is assumed to be installed", style="dim")
    for proof in fleet:
        console.print(f"{proof.platform}: to be proved by {proof.proof} on {', '.join(proof.archs)}", style="dim")
    return 0


def _cell(backend: str | None) -> Text:
    if backend is None:
        return Text(".", style="dim")
    return Text(backend.rpartition(":")[2], style="green")
