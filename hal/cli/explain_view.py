"""An explanation on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from hal.common.backends.proof import say_state, shorten_commit
from hal.common.backends.registry import backends, platforms
from hal.common.contract.reason import Reason
from hal.common.contract.wording import say_count
from hal.config.runs import format_ids, group_layers
from hal.matrix.proof import Evidence

from .explain_answer import DeviceAnswer, Explanation, LayerAnswer
from .explain_sizes import say_layer_bytes, size_rows
from .tables import fit_table
from .words import say_layer, say_model, say_verdict

Refusals = dict[tuple[str, Reason], list[str]]
"""Reasons, after the layers they are about where those are not all, each with the backends it stops."""


def show(answer: Explanation, console: Console) -> None:
    """Prints the model, then one block per device, then the verdict."""
    _show_model(answer, console)
    for device in answer.devices:
        _show_device(answer, device, console)
    console.print()
    console.print(Text(say_verdict(answer), style="bold" if answer.is_served else "bold yellow"))


def _show_model(answer: Explanation, console: Console) -> None:
    shape, limits = answer.shape, answer.limits
    headline, details = say_model(shape)
    console.print(Text(headline, style="bold"))
    _print(console, Text(details))
    table = _table()
    for prefix, layers in (("", shape.layers), ("draft ", shape.draft_layers)):
        for layer, ids in group_layers(layers):
            table.add_row(f"{prefix}layers {format_ids(ids)}" if len(ids) > 1 else f"{prefix}layer {ids[0]}", say_layer(layer))
    _print(console, table)
    for note in shape.notes:
        _print(console, Text(f"note: {note}"))
    for warning in shape.warnings:
        _print(console, Text(f"warning: {warning}", style="yellow"))
    kinds = (("tensor-parallel", answer.parallel.tp), ("decode-context", answer.parallel.dcp))
    ranks = "".join(f", one of {count} {kind} ranks" for kind, count in kinds if count > 1)
    terms = (
        f"asked for: {answer.dtype}, up to {limits.max_num_seqs} requests of {limits.max_model_len:,} tokens, "
        f"{limits.max_num_batched_tokens:,} new tokens per step{ranks}"
    )
    _print(console, Text(terms, style="dim"))


def _show_device(answer: Explanation, found: DeviceAnswer, console: Console) -> None:
    device = found.device
    words = [device.name] if device.name != device.arch else []
    words.append("this machine" if device.present else "not on this machine")
    title = Text.assemble((device.target, "bold"), f"  {', '.join(words)}")
    console.print()
    # A rule would cut what it has no room for.
    console.print(Rule(title, align="left", style="dim") if title.cell_len + 4 <= console.width else title)
    if found.plan is None and answer.backend is not None:
        _print(console, Text(f"{answer.backend} is pinned and cannot serve this model here", style="yellow"))
    headers = ("layers", "backend", "KV cache", "page", "per token and layer", "proved")
    console.print(fit_table(headers, [_layer_row(answer, found, layer) for layer in found.layers], console))
    for sentence in filter(None, (*_lent_calls(found.layers), *_say_proofs(found), _say_software(found))):
        _print(console, Text(sentence, style="dim"))
    sizes = _table()
    for name, text in size_rows(answer, found):
        sizes.add_row(Text(name, style="dim"), text)
    console.print()
    _print(console, sizes)
    _show_refusals(found, console)


def _print(console: Console, what: RenderableType, indent: int = 2) -> None:
    console.print(Padding(what, (0, 0, 0, indent), expand=False))


def _table(*headers: str) -> Table:
    return Table(*headers, box=None, show_header=bool(headers), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))


def _layer_row(answer: Explanation, found: DeviceAnswer, row: LayerAnswer) -> tuple[Text | str, ...]:
    name = f"{'draft ' * row.is_draft}{format_ids(row.layer_ids)} {row.family.replace('_', ' ')}"
    if row.layer.kind in ("none", "cross"):
        return name, Text("not hal's", style="dim"), "", "", "", ""
    if row.selection is None:
        return name, Text("none", style="bold yellow"), "", "", say_layer_bytes(answer, row), ""
    chosen = row.selection
    backend = Text(chosen.backend, style="bold green")
    if chosen.source != "auto":
        backend.append(f" (by {chosen.source})", style="dim")
    layouts = " + ".join(filter(None, (chosen.kv_layout, chosen.index_layout)))
    state = "" if row.proof is None else say_state(row.proof.state, is_card=_is_card(found))
    return name, backend, layouts, str(chosen.block_size), say_layer_bytes(answer, row), state


def _is_card(found: DeviceAnswer) -> bool:
    return not platforms()[found.device.platform].always_present


def _say_proofs(found: DeviceAnswer) -> list[str]:
    """What each row's word in the column "proved" rests on, and that a card is not among it where none is."""
    sentences: dict[str, None] = {}
    proofs = [row.proof for row in found.layers if row.proof is not None]
    for proof in proofs:
        calls = sorted({key.partition(".")[0] for key, state in proof.calls.items() if state == proof.state})
        state = say_state(proof.state, is_card=_is_card(found))
        better = {each for each in proof.calls.values() if each != proof.state}
        only = f", no more than that for {', '.join(calls)}" if better else ""
        sentences[f"{state}{only}: {_say_evidence(proof.evidence) or 'by the capabilities that the backend declares alone'}"] = (
            None
        )
    if proofs and _is_card(found) and all("verified" not in proof.calls.values() for proof in proofs):
        sentences[f"none of this has run on a card: served means chosen, not tried on {found.device.arch}"] = None
    return list(sentences)


def _say_evidence(evidence: Sequence[Evidence]) -> str:
    """The reports by suite and means, with their cases added up."""
    counts: dict[tuple[str, ...], int] = {}
    for each in evidence:
        key = (each.suite, each.means, shorten_commit(each.commit), each.date)
        counts[key] = counts.get(key, 0) + each.passed
    return "; ".join(
        f"{count:,} cases of {suite}, by {means}, commit {commit}, {date}"
        for (suite, means, commit, date), count in counts.items()
    )


def _lent_calls(layers: Sequence[LayerAnswer]) -> list[str]:
    """Which calls come from another backend than the one a layer is named after, each combination once."""
    sentences: dict[str, None] = {}
    for row in layers:
        lent: dict[str, list[str]] = {}
        for call, provider in row.selection.providers.items() if row.selection else ():
            if row.selection and provider != row.selection.backend:
                lent.setdefault(provider, []).append(call)
        sentences.update({f"{', '.join(calls)} by {provider}": None for provider, calls in lent.items()})
    return list(sentences)


def _say_software(found: DeviceAnswer) -> str:
    """What the answer takes to be installed, where that is not what this machine has."""
    if found.device.present:
        return ""
    if found.software is None:
        return "every vendor library is assumed to be installed; --software declares which ones are"
    declared = ", ".join(f"{name} {version}" for name, version in found.software.versions)
    return f"declared as installed: {declared or 'no vendor library'}"


def _show_refusals(found: DeviceAnswer, console: Console) -> None:
    shared, own, foreign = group_refusals(found.layers)
    able = list(dict.fromkeys(name for row in found.layers for name in row.also_able))
    if not (shared or own or foreign or able):
        return
    console.print()
    _print(console, Text("why not another", style="dim"))
    for (where, reason), names in (*shared.items(), *own.items()):
        _print(console, Text.assemble((", ".join(names), "bold"), f": {where}{reason.render(names)}"), indent=4)
    if able:
        _print(console, Text.assemble((", ".join(able), "bold"), ": able too, ranked after"), indent=4)
    if foreign:
        platforms = sorted({backends()[name].platform for name in foreign})
        do = "does" if len(foreign) == 1 else "do"
        some = f"{say_count(len(foreign), 'backend')} of {', '.join(platforms)} {do} not run here"
        _print(console, Text(some, style="dim"), indent=4)


def group_refusals(layers: Sequence[LayerAnswer]) -> tuple[Refusals, Refusals, list[str]]:
    """Causes of the whole environment, each once with the backends it stops; then each backend's own, with the layers
    it concerns where it is not all of them; then the names of other platforms' backends."""
    shared: Refusals = {}
    own: dict[tuple[str, Reason], list[LayerAnswer]] = {}
    foreign: list[str] = []
    served = [row for row in layers if row.layer.kind not in ("none", "cross")]
    for row in served:
        for name, reasons in row.rejected.items():
            for reason in reasons:
                if reason.code == "platform":
                    foreign += [name] if name not in foreign else []
                elif reason.is_environmental:
                    names = shared.setdefault(("", reason.without(name)), [])
                    names += [name] if name not in names else []
                else:
                    own.setdefault((name, reason.without(name)), []).append(row)
    specific: Refusals = {}
    for (name, reason), rows in own.items():
        where = "" if len(rows) == len(served) else f"layers {format_ids(i for row in rows for i in row.layer_ids)}: "
        specific.setdefault((where, reason), []).append(name)
    return shared, specific, foreign
