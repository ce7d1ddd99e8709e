"""The compile report as tables of 100 columns, and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hal.common.backends.registry import platforms
from hal.common.contract.arch import Arch
from hal.config import ModelShape
from hal.matrix.compile import CompileReport, KernelRow
from hal.matrix.figures import Figures

COLUMNS = ("kernel", "model", "binaries", "shared", "registers", "spills", "matrix", "stores")
LEGEND = (
    "Each figure is the worst of a kernel's binaries: most bytes, registers and spills, fewest matrix instructions and stores. "
    "Spills are bytes of stack in a cubin and vector registers in an hsaco, +2s being two scalar ones kept in lanes of vector "
    "ones; a spirv leaves ? to the device's own compiler."
)


def to_dict(report: CompileReport) -> dict[str, Any]:
    """The report with every binary's figures, types and constants."""
    return {
        "triton": asdict(report.toolchain),
        "passed": not any(row.faults for row in report.rows),
        "rows": [_row_to_dict(row) for row in report.rows],
        "not_compiled": dict(report.absent),
    }


def _row_to_dict(row: KernelRow) -> dict[str, Any]:
    made = row.specialisation
    return {
        "target": row.target,
        "kernel": row.kernel,
        "models": row.models,
        "figures": None if row.figures is None else asdict(row.figures),
        "faults": row.faults,
        "signature": None if made is None else dict(made.signature),
        "constants": None if made is None else dict(made.constexprs),
        "options": None if made is None else made.options,
    }


def show(report: CompileReport, models: Mapping[str, ModelShape], console: Console) -> None:
    """A table per target, then what was not compiled, then the verdict."""
    for target in dict.fromkeys(row.target for row in report.rows):
        rows = [row for row in report.rows if row.target == target]
        _show_target(target, rows, console)
    for reason, targets in by_reason(report.absent).items():
        console.print(Text.assemble((", ".join(targets), "bold"), " not compiled: ", (reason, "yellow")))
    if not report.rows:
        console.print(Text("nothing was compiled", style="red"))
        return
    failed = sum(bool(row.faults) for row in report.rows)
    count = "1 binary" if len(report.rows) == 1 else f"{len(report.rows)} binaries"
    made = f"{count} of {' and '.join(models)} by triton {report.toolchain.version}"
    verdict = Text(f"{failed} failed", style="red") if failed else Text("none failed", style="green")
    console.print(Text.assemble(made, ": ", verdict))
    console.print(Text(LEGEND, style="dim"))


def by_reason(absent: Mapping[str, str]) -> dict[str, list[str]]:
    """The targets that were not compiled, by why."""
    found: dict[str, list[str]] = {}
    for target, reason in absent.items():
        found.setdefault(reason, []).append(target)
    return found


def _show_target(target: str, rows: Sequence[KernelRow], console: Console) -> None:
    arch = _find_arch(target)
    console.print(Text.assemble((target, "bold"), (f"  {_say_limits(arch)}", "dim")))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("kernel", "model") else "right", no_wrap=name != "model")
    table.add_column("")
    groups: dict[tuple[str, tuple[str, ...]], list[KernelRow]] = {}
    for row in rows:
        groups.setdefault((row.kernel, row.models), []).append(row)
    for (kernel, names), alike in groups.items():
        table.add_row(kernel, ", ".join(names), str(len(alike)), *_cells([row.figures for row in alike]), _verdict(alike))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    for row in rows:
        for fault in row.faults:
            console.print(
                Padding(Text(f"{row.kernel} for {', '.join(row.models)}{_say_variant(row)} {fault}", "red"), (0, 0, 0, 2))
            )
    console.print()


def _say_limits(arch: Arch) -> str:
    shared, registers = arch.shared_memory_bytes, arch.registers_per_thread
    words = [arch.sample_part] if arch.sample_part else []
    words += [f"{shared:,} bytes shared"] if shared is not None else []
    words += [f"{registers} registers a thread"] if registers is not None else []
    return ", ".join(words)


def _say_variant(row: KernelRow) -> str:
    """What tells a kernel's binaries apart at a glance: the sides of its tile, the switches that are on, its warps."""
    made = row.specialisation
    if made is None:
        return ""
    constants = made.constexprs.items()
    words = [f"{name} {value}" for name, value in constants if name.startswith(("BLOCK", "NUM"))]
    words += [name for name, value in constants if value is True]
    return f" ({', '.join(words)}, {made.num_warps} warps, {made.num_stages} stages)"


def _cells(figures: Iterable[Figures | None]) -> tuple[str, ...]:
    known = [one for one in figures if one is not None]
    if not known:
        return ("-",) * 5
    scalar = max(one.scalar_spills for one in known)
    return (
        f"{max(one.shared_bytes for one in known):,}",
        _say_worst(one.registers for one in known),
        _say_worst(one.spills for one in known) + (f"+{scalar}s" if scalar else ""),
        f"{min(one.matrix for one in known):,}",
        f"{min(one.stores for one in known):,}",
    )


def _say_worst(values: Iterable[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):,}" if known else "?"


def _verdict(rows: Sequence[KernelRow]) -> Text:
    failed = sum(bool(row.faults) for row in rows)
    return Text(f"{failed} fail", style="red") if failed else Text("ok", style="green")


def _find_arch(target: str) -> Arch:
    platform, _, name = target.partition(":")
    return next(row for row in platforms()[platform].archs() if row.name == (name or platform))
