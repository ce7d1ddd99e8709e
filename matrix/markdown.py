"""The support table, its differences and the parity table as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hal.common.backends.proof import STATES, say_state, shorten_commit
from hal.common.backends.registry import platforms

from .cells import Cell, Variant
from .diff import TableDiff
from .features import FEATURES
from .parity import Parity
from .proof import Evidence

GENERATED = "<!-- Written by `hal matrix --write matrix`; what is changed by hand is lost. -->"
MARKS = {"verified": "V", "executed": "X", "emulated": "E", "compiled": "C", "declared": "D", "unsupported": "–"}
MEANINGS = {
    "verified": "its cases ran on the arch itself; on a CPU, for the CPU backend",
    "executed": "compiled or vendor's code, executed on a CPU",
    "emulated": "in Triton's interpreter, or against a stand-in of the vendor's library",
    "compiled": "ahead of time, within the arch's limits",
    "declared": "by the backend's capabilities alone",
    "unsupported": "nobody serves it",
}
MOST_CHANGES = 200


def support_markdown(cells: Sequence[Cell], evidence: Sequence[Evidence]) -> str:
    """The whole page: who serves which model where, the other variants in short, why not, and what the states rest on."""
    lines = [GENERATED, "", "# Who serves what", "", *_legend(), ""]
    for platform in dict.fromkeys(cell.target.partition(":")[0] for cell in cells):
        own = [cell for cell in cells if cell.target.partition(":")[0] == platform]
        lines += [f"## {platform}", "", *_models(own), "", *_variants(own), "", *_refusals(own), ""]
    lines += ["## What the states rest on", "", *_evidence(evidence)]
    return "\n".join(lines) + "\n"


def _legend() -> Iterator[str]:
    yield (
        "Real configs, every vendor library taken as installed. A state is the weakest of the calls that a model needs; it comes "
        "from the reports of suites (at the end), never from a hand. Served means chosen: only V was tried on the arch."
    )
    yield ""
    yield from _table(("", "state", "meaning"), [(MARKS[state], state, MEANINGS[state]) for state in STATES])


def _models(cells: Sequence[Cell]) -> Iterator[str]:
    """Models by archs: as they are usually run where that was asked, else in each way that was."""
    variants = dict.fromkeys(map(_variant_of, cells))
    for variant in [Variant()] if Variant() in variants else variants:
        yield f"In {_say_variant(variant)}:"
        yield ""
        yield from _models_as([cell for cell in cells if _variant_of(cell) == variant])
        yield ""


def _variant_of(cell: Cell) -> Variant:
    return Variant(dtype=cell.dtype, kv_layout=cell.kv_layout, feature=cell.feature)


def _models_as(cells: Sequence[Cell]) -> Iterator[str]:
    """Archs that are alike share a column; a model that a feature does not concern has no entry."""
    known = {(cell.model, cell.target): _say(cell) for cell in cells}
    names = dict.fromkeys(cell.model for cell in cells)
    alike: dict[tuple[str, ...], list[str]] = {}
    for target in dict.fromkeys(cell.target for cell in cells):
        column = tuple(known.get((name, target), "") for name in names)
        alike.setdefault(column, []).append(target.partition(":")[2] or target)
    rows = [(name, *(column[place] for column in alike)) for place, name in enumerate(names)]
    yield from _table(("model", *(", ".join(archs) for archs in alike.values())), rows)


def _say(cell: Cell) -> str:
    backends = ", ".join(name.partition(":")[2] or name for name in cell.backends)
    return f"{MARKS[cell.state]} {backends}".strip()


def _variants(cells: Sequence[Cell]) -> Iterator[str]:
    """How many of the models that a variant concerns are served on each arch."""
    targets = dict.fromkeys(cell.target for cell in cells)
    found: dict[Variant, dict[str, list[bool]]] = {}
    for cell in cells:
        found.setdefault(_variant_of(cell), {}).setdefault(cell.target, []).append(cell.is_served)
    rows = [
        (_say_variant(variant), *(f"{sum(served.get(target, ()))}/{len(served.get(target, ()))}" for target in targets))
        for variant, served in found.items()
    ]
    yield from _table(("models served", *(target.partition(":")[2] or target for target in targets)), rows)


def _say_variant(variant: Variant) -> str:
    feature = f", {FEATURES[variant.feature].meaning}" if variant.feature else ""
    layout = "" if variant.kv_layout == "auto" else f", {variant.kv_layout} caches"
    return f"{variant.dtype}{layout}{feature}"


def _refusals(cells: Sequence[Cell]) -> Iterator[str]:
    """Each reason once, with how many cells it stops; the commonest first."""
    counts: dict[str, int] = {}
    for cell in cells:
        for reason in cell.reasons:
            counts[reason] = counts.get(reason, 0) + 1
    if counts:
        rows = [(str(count), reason) for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        yield from _table(("cells", "why not"), rows)


def _evidence(evidence: Sequence[Evidence]) -> Iterator[str]:
    """One row for what one suite says of one backend on one arch."""
    counts: dict[tuple[str, ...], int] = {}
    for each in evidence:
        on_card = not platforms()[each.backend.partition(":")[0]].always_present
        words = (each.backend, each.arch, say_state(each.state, is_card=on_card), each.means, each.device, each.suite)
        key = (*words, shorten_commit(each.commit), each.date)
        counts[key] = counts.get(key, 0) + each.passed
    rows = [(*key[:6], f"{count:,}", *key[6:]) for key, count in counts.items()]
    yield from _table(("backend", "arch", "state", "by", "run on", "suite", "cases", "commit", "date"), rows)


def parity_markdown(parity: Parity) -> str:
    """Features by platforms, then every hole's reason."""
    names = parity.platforms
    rows = [(feature, *("yes" if name in has else "–" for name in names)) for feature, has in parity.has.items()]
    reasons: dict[str, list[str]] = {}
    for (feature, name), reason in parity.holes.items():
        reasons.setdefault(reason or "**no reason is given**", []).append(f"{feature} on {name}")
    lines = [GENERATED, "", "# Which platform has what", ""]
    lines += ["From the capabilities that backends declare; a platform has what any of its backends has on some arch.", ""]
    lines += [*_table(("feature", *names), rows), "", f"## The {len(parity.holes)} holes", ""]
    lines += _table(("why not", "what"), [(reason, "; ".join(holes)) for reason, holes in reasons.items()])
    return "\n".join(lines) + "\n"


def diff_markdown(diff: TableDiff) -> str:
    """The changes for a pull request; the first of each kind where there are very many."""
    lines = [f"### hal matrix: {say_counts(diff)}", ""]
    for kind, changes in diff.sections():
        rows = [(" ".join(filter(None, change.key)), change.what) for change in changes[:MOST_CHANGES]]
        more = [f"and {len(changes) - MOST_CHANGES:,} more", ""] if len(changes) > MOST_CHANGES else []
        lines += [f"**{kind}**", "", *_table(("cell", "change"), rows), "", *more]
    return "\n".join(lines).rstrip() + "\n"


def say_counts(diff: TableDiff) -> str:
    """How many cells changed in which way."""
    return ", ".join(f"{len(changes):,} {kind}" for kind, changes in diff.sections()) or "nothing changed"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(headers), f"|{' --- |' * len(headers)}", *map(line, rows)]
