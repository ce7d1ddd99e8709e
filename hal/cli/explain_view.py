"""An explanation on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from hal.common.plan import Plan
from hal.common.plan_text import format_bytes
from hal.common.reason import Reason
from hal.common.registry import backends
from hal.config import LayerShape
from hal.config.runs import format_ids, group_layers

from .explain import Capacity, DeviceAnswer, Explanation, LayerAnswer
from .words import say_layer, say_model

Refusals = dict[str, list[str]]
"""Reasons as sentences, each with the backends it stops."""


def show(answer: Explanation, console: Console) -> None:
    """Prints the model, then one block per device."""
    _show_model(answer, console)
    for device in answer.devices:
        _show_device(answer, device, console)


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
    title = f"[bold]{escape(device.target)}[/bold]  {escape(', '.join(words))}"
    console.print()
    console.print(Rule(title, align="left", style="dim"))
    if found.plan is None and answer.backend is not None:
        _print(console, Text(f"{answer.backend} is pinned and cannot serve this model here", style="yellow"))
    table = _table("layers", "backend", "KV cache", "page", "per token and layer")
    for layer in found.layers:
        table.add_row(*_layer_row(answer, layer))
    _print(console, table)
    for sentence in filter(None, (*_lent_calls(found.layers), _say_software(found))):
        _print(console, Text(sentence, style="dim"))
    sizes = _table()
    for name, text in _size_rows(found):
        sizes.add_row(Text(name, style="dim"), text)
    console.print()
    _print(console, sizes)
    _show_refusals(found, console)


def _print(console: Console, what: RenderableType, indent: int = 2) -> None:
    console.print(Padding(what, (0, 0, 0, indent), expand=False))


def _table(*headers: str) -> Table:
    return Table(*headers, box=None, show_header=bool(headers), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))


def _layer_row(answer: Explanation, row: LayerAnswer) -> tuple[Text | str, ...]:
    name = f"{format_ids(row.layer_ids)} {row.family.replace('_', ' ')}"
    if row.layer.kind in ("none", "cross"):
        return name, Text("not hal's", style="dim"), "", "", ""
    if row.selection is None:
        return name, Text("none", style="bold yellow"), "", "", _layer_bytes(answer, row)
    chosen = row.selection
    backend = Text(chosen.backend, style="bold green")
    if chosen.source != "auto":
        backend.append(f" (by {chosen.source})", style="dim")
    layouts = " + ".join(filter(None, (chosen.kv_layout, chosen.index_layout)))
    return name, backend, layouts, str(chosen.block_size), _layer_bytes(answer, row)


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


def _layer_bytes(answer: Explanation, row: LayerAnswer) -> str:
    chosen = row.selection
    kv_layout = answer.shape.layout_of(row.layer, answer.kv_layout) if chosen is None else chosen.kv_layout
    kv = row.layer.kv_bytes_per_token(kv_layout, answer.dtype, answer.parallel.tp)
    index = row.layer.index_bytes_per_token((chosen and chosen.index_layout) or kv_layout, answer.dtype)
    return f"{kv:,} + {index:,} B" if index else f"{kv:,} B"


def _size_rows(found: DeviceAnswer) -> Iterator[tuple[str, str]]:
    index = f" + {found.index_bytes_per_token:,} B of index keys" if found.index_bytes_per_token else ""
    total = format_bytes(found.kv_bytes_per_token + found.index_bytes_per_token)
    yield "a token takes", f"{found.kv_bytes_per_token:,} B of KV{index} over all layers, {total}{_say_full(found.layers)}"
    if found.plan is not None:
        if any(group.part not in ("kv", "index") for group in found.plan.groups):
            kept = "the entries that tokens share and what compressors remember"
            yield "in hal's pools", f"{found.plan.bytes_per_token:,} B per token, with {kept}"
        yield "workspace", format_bytes(found.plan.workspace_bytes)
    if not found.kv_bytes_per_token:
        yield "capacity", "no layer keeps KV here"
    elif found.capacity is None:
        yield "capacity", "give --memory to learn how many tokens fit"
    else:
        yield from _capacity_rows(found.capacity, found.plan)


def _say_full(layers: Sequence[LayerAnswer]) -> str:
    """What the bytes of a token leave aside and the capacity does not."""
    windows = "windows" if any(row.layer.window is not None for row in layers) else ""
    compressed = "compressed layers" if any((row.layer.compress_ratio or 0) > 1 for row in layers) else ""
    parts = " and ".join(filter(None, (windows, compressed)))
    return f"; {parts} counted in full" if parts else ""


def _capacity_rows(capacity: Capacity, plan: Plan | None) -> Iterator[tuple[str, str]]:
    """The model's own need, then hal's pools where they hold another number of tokens."""
    each = f", or {capacity.num_seqs} of {_say_length(capacity.each_request)} each" if capacity.num_seqs > 1 else ""
    aside = "beside the workspace" if plan is not None else "before any workspace"
    longest = f"one request of {_say_length(capacity.one_request)} tokens{each}"
    yield "capacity", f"{longest}, in {format_bytes(capacity.memory_bytes)} {aside}"
    if plan is not None and capacity.pool_tokens is not None and capacity.pool_tokens != capacity.one_request:
        windowed = any(group.window is not None for group in plan.groups)
        counted = "; pages that a window has left behind are kept" if windowed else ""
        yield "hal's pools", f"{capacity.pool_tokens:,} tokens over all requests, in pages of {plan.block_size}{counted}"
        if capacity.group_pool_tokens is not None and capacity.group_pool_tokens > capacity.pool_tokens:
            yield "a pool per group", f"{capacity.group_pool_tokens:,} tokens over all requests, since windows give pages back"


def _say_length(length: int | None) -> str:
    return "any number of" if length is None else f"{length:,}"


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
    for sentence, names in shared.items():
        _print(console, Text.assemble((", ".join(names), "bold"), f": {sentence}"), indent=4)
    for sentence, names in own.items():
        _print(console, Text.assemble((", ".join(names), "bold"), f": {sentence}"), indent=4)
    if able:
        _print(console, Text.assemble((", ".join(able), "bold"), ": able too, ranked after"), indent=4)
    if foreign:
        platforms = sorted({backends()[name].platform for name in foreign})
        _print(console, Text(f"{len(foreign)} backends of {', '.join(platforms)} do not run here", style="dim"), indent=4)


def group_refusals(layers: Sequence[LayerAnswer]) -> tuple[Refusals, Refusals, list[str]]:
    """Causes of the whole environment, each once with the backends it stops; then each backend's own, with the layers
    it concerns where it is not all of them; then the names of other platforms' backends."""
    shared: Refusals = {}
    own: dict[tuple[str, str], list[LayerAnswer]] = {}
    foreign: list[str] = []
    served = [row for row in layers if row.layer.kind not in ("none", "cross")]
    for row in served:
        for name, reasons in row.rejected.items():
            for reason in reasons:
                if reason.code == "platform":
                    foreign += [name] if name not in foreign else []
                elif reason.is_environmental:
                    names = shared.setdefault(_sentence(name, reason), [])
                    names += [name] if name not in names else []
                else:
                    own.setdefault((name, _sentence(name, reason)), []).append(row)
    specific: Refusals = {}
    for (name, sentence), rows in own.items():
        where = "" if len(rows) == len(served) else f"layers {format_ids(i for row in rows for i in row.layer_ids)}: "
        specific.setdefault(where + sentence, []).append(name)
    return shared, specific, foreign


def _sentence(name: str, reason: Reason) -> str:
    """The reason without the backend's own name, so that equal causes read alike."""
    return str(replace(reason, have="its code") if reason.have == name else reason)


def to_dict(answer: Explanation) -> dict[str, Any]:
    """The explanation as plain data; reasons keep their values and carry their sentence."""
    shape = answer.shape
    return {
        "model": {
            "model_type": shape.model_type,
            "text_path": shape.text_path,
            "num_layers": shape.num_layers,
            "max_position_embeddings": shape.max_position_embeddings,
            "is_mla": shape.is_mla,
            "is_sparse": shape.is_sparse,
            "index_topk": shape.index_topk,
            "layers": _list_layers(shape.layers),
            "draft_layers": _list_layers(shape.draft_layers),
            "warnings": shape.warnings,
        },
        "dtype": answer.dtype,
        "backend": answer.backend,
        "kv_layout": answer.kv_layout,
        "limits": asdict(answer.limits),
        "parallel": asdict(answer.parallel),
        "devices": [_device_dict(found) for found in answer.devices],
    }


def _list_layers(layers: Sequence[LayerShape]) -> list[dict[str, Any]]:
    return [{"layer_ids": ids, "what": say_layer(layer)} for layer, ids in group_layers(layers)]


def _device_dict(found: DeviceAnswer) -> dict[str, Any]:
    return {
        "target": found.device.target,
        "name": found.device.name,
        "present": found.device.present,
        "served": found.plan is not None,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "index_bytes_per_token": found.index_bytes_per_token,
        "capacity": asdict(found.capacity) if found.capacity is not None else None,
        "software": dict(found.software.versions) if found.software is not None else None,
        "workspace_bytes": found.plan.workspace_bytes if found.plan is not None else None,
        "refusal": found.refusal,
        "layers": [_layer_dict(row) for row in found.layers],
    }


def _layer_dict(row: LayerAnswer) -> dict[str, Any]:
    chosen = row.selection
    return {
        "layer_ids": row.layer_ids,
        "family": row.family,
        "backend": chosen.backend if chosen else None,
        "source": chosen.source if chosen else None,
        "providers": dict(chosen.providers) if chosen else {},
        "kv_layout": chosen.kv_layout if chosen else None,
        "index_layout": chosen.index_layout if chosen else None,
        "block_size": chosen.block_size if chosen else None,
        "also_able": row.also_able,
        "rejected": {
            name: [{**asdict(reason), "text": str(reason)} for reason in reasons] for name, reasons in row.rejected.items()
        },
    }
