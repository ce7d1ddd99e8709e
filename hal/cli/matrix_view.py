"""The support table and its differences on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hal.common.backends.proof import say_state
from hal.common.backends.registry import platforms
from hal.matrix.cells import Cell, Variant
from hal.matrix.diff import TableDiff
from hal.matrix.markdown import say_counts
from hal.matrix.parity import Parity

from .tables import fit_table


def show_cells(cells: Sequence[Cell], console: Console) -> None:
    """A block per platform: models and archs that are answered alike share a line."""
    for platform in dict.fromkeys(_platform(cell) for cell in cells):
        console.print(Text(platform, style="bold"))
        own = [cell for cell in cells if _platform(cell) == platform]
        headers, rows = _fold(own)
        console.print(fit_table(headers, rows, console, folded=(0, len(headers) - 1)))
        _show_reasons(own, console)
        console.print()
    sentences = (
        "every vendor library is taken as installed, and caches are as backends prefer them where no layout is named",
        "a backend is chosen by what it declares; proved says how far its calls are shown to work, --html by which suite",
        "without options only bfloat16 is shown; --json, --markdown and --html have every dtype, layout and feature",
    )
    for sentence in sentences:
        console.print(Text(sentence, style="dim"))


def _platform(cell: Cell) -> str:
    return cell.target.partition(":")[0]


def _fold(cells: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[Text | str, ...]]]:
    """Headers and rows; how a model runs is told where that varies."""
    by_arch: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for cell in cells:
        variant = _say_variant(Variant(dtype=cell.dtype, kv_layout=cell.kv_layout, feature=cell.feature))
        arch = cell.target.partition(":")[2] or cell.target
        by_arch.setdefault((cell.model, variant, cell.backends, cell.state), []).append(arch)
    by_model: dict[tuple[str, tuple[str, ...], str, tuple[str, ...]], list[str]] = {}
    for (model, variant, backends, state), archs in by_arch.items():
        by_model.setdefault((variant, backends, state, tuple(archs)), []).append(model)
    variants = dict.fromkeys(variant for variant, *_ in by_model)
    varies = len(variants) > 1
    order = {variant: place for place, variant in enumerate(variants)}
    rows: list[tuple[Text | str, ...]] = [
        (", ".join(models), *([variant] if varies else ()), _name(backends), _proved(state, cells), ", ".join(archs))
        for (variant, backends, state, archs), models in sorted(by_model.items(), key=lambda item: order[item[0][0]])
    ]
    return ("models", *(("as",) if varies else ()), "backend", "proved", "archs"), rows


def _name(backends: Sequence[str]) -> Text:
    return Text(", ".join(backends), style="green") if backends else Text("nobody", style="yellow")


def _proved(state: str, cells: Sequence[Cell]) -> str:
    is_card = not platforms()[_platform(cells[0])].always_present
    return "" if state == "unsupported" else say_state(state, is_card=is_card)


def _say_variant(variant: Variant) -> str:
    words = [variant.dtype, variant.kv_layout if variant.kv_layout != "auto" else "", variant.feature]
    return "+".join(filter(None, words))


def _show_reasons(cells: Sequence[Cell], console: Console) -> None:
    reasons = dict.fromkeys(reason for cell in cells for reason in cell.reasons)
    if reasons:
        console.print(Padding(Text("why nobody", style="dim"), (0, 0, 0, 2), expand=False))
    for reason in reasons:
        console.print(Padding(Text(reason), (0, 0, 0, 4), expand=False))


def show_diff(diff: TableDiff, console: Console) -> None:
    """The changes by kind, then how many."""
    for kind, changes in diff.sections():
        console.print(Text(kind, style="bold yellow" if kind in ("worse", "gone") else "bold"))
        for change in changes:
            line = Text.assemble((" ".join(filter(None, change.key)), "bold"), f": {change.what}")
            console.print(Padding(line, (0, 0, 0, 2), expand=False))
    console.print(say_counts(diff))


def show_parity(parity: Parity, console: Console) -> None:
    """Features by platforms, then every hole's reason."""
    rows = [(feature, *("yes" if name in has else "-" for name in parity.platforms)) for feature, has in parity.has.items()]
    console.print(fit_table(("feature", *parity.platforms), rows, console, indent=0))
    reasons: dict[str, dict[str, None]] = {}
    for (_, name), reason in parity.holes.items():
        reasons.setdefault(reason, {})[name] = None
    console.print()
    for reason, names in reasons.items():
        console.print(Text.assemble((", ".join(names), "bold"), f": {reason or 'no reason is given'}"))
    console.print(f"{len(parity.holes)} holes, {len(parity.unexplained)} without a reason")
