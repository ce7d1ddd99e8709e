"""hal matrix: the support table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hal.matrix import PlatformProof, SupportRow, read_fleet, support_table

from .console import make_console, print_json
from .tables import fit_table

Served = tuple[tuple[str, str | None], ...]
"""Kinds of attention with the backend of each, hashable."""


def run_matrix(*, as_json: bool) -> int:
    """0, after printing who serves what on every arch, and how each platform's archs are to be proved."""
    rows, fleet = support_table(), {proof.platform: proof for proof in read_fleet()}
    if as_json:
        print_json({"support": [asdict(row) for row in rows], "fleet": [asdict(proof) for proof in fleet.values()]})
        return 0
    console = make_console()
    for platform in dict.fromkeys(_platform(row) for row in rows):
        _show_platform(platform, [row for row in rows if _platform(row) == platform], fleet, console)
    console.print(Text("every vendor library is assumed to be installed; hal doctor looks at this machine", style="dim"))
    return 0


def _platform(row: SupportRow) -> str:
    return row.target.partition(":")[0]


def _show_platform(platform: str, rows: Iterable[SupportRow], fleet: Mapping[str, PlatformProof], console: Console) -> None:
    """Archs that are served alike share their lines."""
    alike: dict[Served, list[str]] = {}
    for row in rows:
        alike.setdefault(tuple(row.backends.items()), []).append(row.target.partition(":")[2] or row.target)
    console.print(Text(platform, style="bold"))
    lines: list[tuple[Text | str, ...]] = []
    for served, archs in alike.items():
        kinds: dict[str | None, list[str]] = {}
        for kind, backend in served:
            kinds.setdefault(backend, []).append(kind)
        for backend, names in sorted(kinds.items(), key=lambda item: item[0] is None):
            name = Text("no backend yet", style="dim") if backend is None else Text(backend, style="green")
            lines.append((", ".join(archs), name, ", ".join(names)))
            archs = []
    console.print(fit_table(("", "", ""), lines, console))
    proof = fleet.get(platform)
    if proof is not None:
        words = "proved by running" if proof.proof == "run" else f"to be proved by compiling to {proof.proof}"
        console.print(Padding(Text(f"{words}: {', '.join(proof.archs)}", style="dim"), (0, 0, 1, 2), expand=False))
