"""The times of a model's attention, on the screen and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hal.common.contract.backend import PHASES
from hal.config.runs import format_ids

from .bench_timing import Timing, Trial
from .words import say_layer, say_model


def show(timing: Timing, console: Console) -> None:
    """Prints the model, a line for each kind of layer, and what all layers take together."""
    trial = timing.trial
    console.print(Text(say_model(timing.shape)[0], style="bold"))
    ranks = f", one of {trial.tp} tensor-parallel ranks" if trial.tp > 1 else ""
    terms = f"{timing.target}, {timing.dtype}{ranks}: {_say_decode(timing.trial)}, or one prompt of {trial.prefill:,} tokens"
    console.print(Padding(Text(terms, style="dim"), (0, 0, 1, 2), expand=False))
    table = Table("layers", "backend", *PHASES, "", box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for kind in timing.kinds:
        times = (say_seconds(kind.seconds[phase]) for phase in PHASES)
        table.add_row(format_ids(kind.layer_ids), Text(kind.backend, style="bold green"), *times, say_layer(kind.layer))
    table.add_row("a step's metadata", "", *(say_seconds(timing.build_seconds[phase]) for phase in PHASES))
    table.add_row(Text("all together", style="bold"), "", *(say_seconds(timing.total(phase)) for phase in PHASES))
    table.add_row("tokens per second", "", *(f"{timing.tokens(phase) / timing.total(phase):,.0f}" for phase in PHASES))
    console.print(Padding(table, (0, 0, 1, 2), expand=False))
    console.print(Text("  attention alone, on random caches: what a model computes around it is not in these times", style="dim"))


def _say_decode(trial: Trial) -> str:
    return f"one token for {trial.requests} request{'s' if trial.requests > 1 else ''} of {trial.context:,}"


def say_seconds(seconds: float) -> str:
    """A time of three digits in the unit that fits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e6:.3g} us"


def to_dict(timing: Timing) -> dict[str, Any]:
    """The same for machines, in seconds."""
    trial = {**asdict(timing.trial), "config": str(timing.trial.config)}
    kinds = [
        {"layer_ids": kind.layer_ids, "kind": say_layer(kind.layer), "backend": kind.backend, "seconds": dict(kind.seconds)}
        for kind in timing.kinds
    ]
    together = {
        phase: {"seconds": timing.total(phase), "tokens_per_second": timing.tokens(phase) / timing.total(phase)}
        for phase in PHASES
    }
    return {
        "asked": trial,
        "device": timing.target,
        "dtype": timing.dtype,
        "layers": kinds,
        "build_seconds": dict(timing.build_seconds),
        "together": together,
    }
