"""A doctor's report on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hal.common.plan_text import format_bytes

GOOD, BAD, QUIET = "green", "bold yellow", "dim"


def show_report(report: dict[str, Any], console: Console) -> None:
    """Prints every section; one that could not be collected shows its error."""
    views: dict[str, Callable[[Any, Console], None]] = {
        "hal": _show_hal,
        "torch": _show_torch,
        "platforms": _show_platforms,
        "backends": _show_backends,
        "plugins": _show_plugins,
        "libraries": _show_libraries,
        "environment": _show_environment,
    }
    for name, view in views.items():
        section = report[name]
        if isinstance(section, dict) and section.keys() == {"error"}:
            _title(console, name.replace("_", " "))
            _line(console, f"could not be looked at: {section['error']}", BAD)
        else:
            view(section, console)


def _title(console: Console, name: str) -> None:
    console.print(Text(name, style="bold"))


def _line(console: Console, text: RenderableType | str, style: str = "") -> None:
    console.print(Padding(Text(text, style=style) if isinstance(text, str) else text, (0, 0, 0, 2), expand=False))


def _table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def _show_hal(section: dict[str, Any], console: Console) -> None:
    _title(console, f"hal {section['version']}")
    table = _table()
    table.add_row("location", section["location"])
    table.add_row("installed by", ", ".join(section["distributions"]) or "nothing")
    table.add_row("python", f"{section['python']}, {section['executable']}")
    table.add_row("system", section["system"])
    _line(console, table)
    for warning in section["warnings"]:
        _line(console, f"warning: {warning}", BAD)


def _show_torch(section: dict[str, Any], console: Console) -> None:
    if section["version"] is None:
        _title(console, "torch is not installed")
        _line(console, "planning works without it; running needs the extra: pip install 'hal-attention[torch]'")
        return
    _title(console, f"torch {section['version']}")
    build = {name: value for name, value in section["build"].items() if value and name not in ("debug", "git_version")}
    _line(console, "built for " + (", ".join(f"{name} {value}" for name, value in build.items()) or "the CPU only"))
    _line(console, str(section["location"]), QUIET)


def _show_platforms(section: list[dict[str, Any]], console: Console) -> None:
    _title(console, "devices")
    table = _table()
    for row in section:
        for device in row["devices"]:
            memory = format_bytes(device["memory_bytes"]) if device["memory_bytes"] else "memory unknown"
            table.add_row(Text(device["target"], style=GOOD), f"{device['name']}, {memory}")
        if not row["devices"]:
            table.add_row(Text(row["platform"], style=QUIET), Text("; ".join(row["findings"]) or "none found", style=QUIET))
    _line(console, table)


def _show_backends(section: list[dict[str, Any]], console: Console) -> None:
    _title(console, "backends")
    table = _table()
    for row in section:
        if row["usable"]:
            table.add_row(Text(row["name"], style=GOOD), _check_words(row))
        else:
            table.add_row(Text(row["name"], style=QUIET), Text("; ".join(row["reasons"]), style=QUIET))
    _line(console, table)


def _check_words(row: dict[str, Any]) -> Text:
    check = row["check"]
    if check is None:
        return Text(f"usable, not checked here: {'; '.join(row['reasons'])}")
    if check["passed"]:
        return Text(f"usable, checked in {check['dtype']}: largest error {check['error']:.1e}, {check['seconds']:.2f} s")
    return Text(f"FAILED its check: {check['failure']}", style=BAD)


def _show_plugins(section: list[dict[str, Any]], console: Console) -> None:
    unloaded = [row for row in section if row["failure"] is not None or not row["is_allowed"]]
    if unloaded:
        _title(console, "plugins that are not loaded")
    for row in unloaded:
        why = row["failure"] or "HAL_PLUGINS does not name it"
        _line(console, f"{row['name']} ({row['distribution']}): {why}", BAD if row["failure"] else "")


def _show_libraries(section: list[dict[str, Any]], console: Console) -> None:
    _title(console, "vendor libraries")
    found = [row for row in section if row["version"] is not None]
    for row in found:
        loads = f"does not load: {row['failure']}" if row["failure"] else "loads"
        _line(console, f"{row['name']} {row['version']} ({row['distribution']}) {loads}", BAD if row["failure"] else "")
    absent = [row["name"] for row in section if row["version"] is None]
    if absent:
        _line(console, f"not installed: {', '.join(absent)}", QUIET)


def _show_environment(section: dict[str, Any], console: Console) -> None:
    _title(console, "environment")
    table = _table()
    for name, entry in section["hal"].items():
        table.add_row(name, entry["value"] or Text(f"unset; {entry['meaning']}", style=QUIET))
    for name, value in (*section["device_filters"].items(), *section["other"].items()):
        table.add_row(name, value)
    _line(console, table)
    for warning in section["warnings"]:
        _line(console, f"warning: {warning}", BAD)
