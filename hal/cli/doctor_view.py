"""A doctor's report on one screen: what is the same is said once, and what nobody set or found is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hal.common.contract.plan_text import format_bytes
from hal.common.contract.reason import Reason

GOOD, BAD, QUIET = "green", "bold yellow", "dim"


def show_report(report: dict[str, Any], console: Console) -> None:
    """Prints every section, and the verdict last; a section that could not be collected is among the problems."""
    views: dict[str, Callable[[Any, Console], None]] = {
        "hal": _show_hal,
        "torch": _show_torch,
        "platforms": _show_platforms,
        "backends": _show_backends,
        "plugins": _show_plugins,
        "libraries": _show_libraries,
        "environment": _show_environment,
        "clashes": _show_clashes,
    }
    for name, view in views.items():
        section = report[name]
        if not (isinstance(section, dict) and section.keys() == {"error"}):
            view(section, console)
    problems = report["problems"]
    for problem in problems:
        _line(console, f"problem: {problem}", BAD, indent=0)
    if not problems:
        _line(console, "no problem found", GOOD, indent=0)


def _title(console: Console, name: str, rest: str = "") -> None:
    console.print(Text.assemble((name, "bold"), rest))


def _line(console: Console, text: RenderableType | str, style: str = "", indent: int = 2) -> None:
    shown = Text(text, style=style) if isinstance(text, str) else text
    console.print(Padding(shown, (0, 0, 0, indent), expand=False))


def _table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def _show_hal(section: dict[str, Any], console: Console) -> None:
    _title(console, f"hal {section['version']}", f", python {section['python']}, {section['system']}")
    owners = ", ".join(section["distributions"]) or "nothing"
    _line(console, f"{section['location']}, installed by {owners}; {section['executable']}", QUIET)


def _show_torch(section: dict[str, Any], console: Console) -> None:
    if section["version"] is None:
        _title(console, "torch", " is not installed: planning works, running needs pip install 'hal-attention[torch]'")
        return
    build = {name: value for name, value in section["build"].items() if value and name not in ("debug", "git_version")}
    built = ", ".join(f"{name} {value}" for name, value in build.items()) or "the CPU only"
    _title(console, f"torch {section['version']}", f", built for {built}")
    _line(console, str(section["location"]), QUIET)


def _show_platforms(section: list[dict[str, Any]], console: Console) -> None:
    _title(console, "devices")
    table = _table()
    for row in section:
        alike: dict[tuple[str, str], int] = {}
        for device in row["devices"]:
            memory = format_bytes(device["memory_bytes"]) if device["memory_bytes"] else "memory unknown"
            key = device["target"], f"{device['name']}, {memory}"
            alike[key] = alike.get(key, 0) + 1
        for (target, words), count in alike.items():
            table.add_row(Text(target, style=GOOD), words if count == 1 else f"{count} x {words}")
        findings = "; ".join(row["findings"])
        if findings or not row["devices"]:
            name = "" if row["devices"] else row["platform"]
            table.add_row(Text(name, style=QUIET), Text(findings or "none found", style=QUIET))
    _line(console, table)


def _show_backends(section: list[dict[str, Any]], console: Console) -> None:
    _title(console, "backends")
    table = _table()
    refused: dict[tuple[Reason | str, ...], list[str]] = {}
    for row in section:
        if row["usable"]:
            table.add_row(Text(row["name"], style=GOOD), _check_words(row))
        else:
            refused.setdefault(tuple(row["reasons"]), []).append(row["name"])
    _line(console, table)
    for reasons, names in refused.items():
        said = (reason.render(names) if isinstance(reason, Reason) else reason for reason in reasons)
        _line(console, f"{', '.join(names)}: {'; '.join(said)}", QUIET)


def _check_words(row: dict[str, Any]) -> Text:
    check = row["check"]
    if check is None:
        return Text(f"usable, not checked here: {'; '.join(row['reasons'])}")
    if check["passed"]:
        return Text(f"usable, checked in {check['dtype']}: largest error {check['error']:.1e}, {check['seconds']:.2f} s")
    return Text(f"FAILED its check: {check['failure']}", style=BAD)


def _show_plugins(section: list[dict[str, Any]], console: Console) -> None:
    """Those that load are seen by their backends, and one that fails is a problem."""
    left_out = [f"{row['name']} ({row['distribution']})" for row in section if not row["is_allowed"]]
    if left_out:
        _title(console, "plugins", f" that HAL_PLUGINS does not name, and that are not loaded: {', '.join(left_out)}")


def _show_libraries(section: list[dict[str, Any]], console: Console) -> None:
    _title(console, "vendor libraries")
    for row in (row for row in section if row["version"] is not None):
        loads = f"does not load: {row['failure']}" if row["failure"] else "loads"
        _line(console, f"{row['name']} {row['version']} ({row['distribution']}) {loads}", BAD if row["failure"] else "")
    absent = [row["name"] for row in section if row["version"] is None]
    if absent:
        _line(console, f"not installed: {', '.join(absent)}", QUIET)


def _show_environment(section: dict[str, Any], console: Console) -> None:
    own = {name: entry["value"] for name, entry in section["hal"].items() if entry["value"]}
    values = {**own, **section["device_filters"], **section["other"]}
    unset = [name for name in section["hal"] if name not in own]
    _title(console, "environment")
    _show_lines(console, (f"{name}={value}" for name, value in values.items()))
    if unset:
        _line(console, f"not set: {', '.join(unset)}", QUIET)
    _show_lines(console, (f"warning: {warning}" for warning in section["warnings"]), BAD)


def _show_clashes(section: list[str], console: Console) -> None:
    if section:
        _title(console, "clashes")
        _show_lines(console, section, BAD)


def _show_lines(console: Console, lines: Iterable[str], style: str = "") -> None:
    for line in lines:
        _line(console, line, style)
