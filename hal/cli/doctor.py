"""hal doctor: what this machine has, collected so that no broken part can keep the rest from being shown."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from keyword import iskeyword
from pathlib import Path
from typing import Any

from hal.common.backends.detection import probe_platforms
from hal.common.backends.plugins import list_plugins
from hal.common.backends.registry import backends, broken_plugins, find_backend, known_libraries
from hal.common.contract.device import Device
from hal.common.contract.environment import VARIABLES, find_mistakes, read_variable
from hal.common.contract.quiet import describe_error
from hal.common.contract.reason import Reason
from hal.common.contract.software import Library

from .clashes import find_clashes, find_shared
from .console import make_console, print_json
from .selfcheck import check_in_subprocess, load_in_subprocess
from .usability import explain_unchecked, explain_unusable

Section = dict[str, Any]
SCHEMA = 1
"""The number of the report's form: it grows where a program that reads the JSON would have to change."""
DEVICE_FILTERS = ("_VISIBLE_DEVICES", "_AFFINITY_MASK", "_DEVICE_SELECTOR", "_DEVICE_ORDINAL")
"""Endings of the variables by which drivers hide devices from a process, whoever made them."""
OTHER_VARIABLES = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "TRITON_INTERPRET", "PYTHONPATH")


def run_doctor(*, as_json: bool) -> int:
    """0 after printing the report; 1 where it names a problem."""
    report = examine()
    if as_json:
        print_json(report)
    else:
        from .doctor_view import show_report

        show_report(report, make_console())
    return 1 if report["problems"] else 0


def examine() -> Section:
    """The whole report; a section that could not be collected holds {"error": "Type: message"} instead.

    problems: sentences on what is wrong with this machine's hal, none of a healthy one. clashes: what may go wrong.
    """
    report: Section = {
        "schema": SCHEMA,
        "hal": _guard(examine_hal),
        "torch": _guard(examine_torch),
        "environment": _guard(examine_environment),
        "platforms": _guard(examine_platforms),
        "plugins": _guard(examine_plugins),
        "libraries": _guard(examine_libraries),
        "clashes": _guard(lambda: list(find_clashes())),
        "backends": _guard(examine_backends),
    }
    return {**report, "problems": list(find_problems(report))}


def find_problems(report: Section) -> Iterator[str]:
    """A sentence for each section that broke, plugin that does not load, check that failed, and pin that cannot be served."""
    for name, section in report.items():
        if isinstance(section, dict) and section.keys() == {"error"}:
            yield f"{name} could not be looked at: {section['error']}"
    plugins, found = (report[name] if isinstance(report[name], list) else [] for name in ("plugins", "backends"))
    for plugin in plugins:
        if plugin["failure"]:
            yield f"the plugin {plugin['name']} ({plugin['distribution']}) does not load: {plugin['failure']}"
    for backend in found:
        if backend["check"] is not None and not backend["check"]["passed"]:
            yield f"{backend['name']} failed its check: {backend['check']['failure']}"
    pinned = read_variable("HAL_BACKEND")
    if pinned is not None and not any(row["name"] == _name_now(pinned) and row["usable"] for row in found):
        why = "; ".join(str(reason) for row in found if row["name"] == _name_now(pinned) for reason in row["reasons"])
        yield f"HAL_BACKEND pins {pinned}, which is not usable here: {why or 'no backend has that name'}"


def _name_now(pinned: str) -> str:
    """The name of the backend that a pin means; the pin itself where it means none."""
    try:
        return find_backend(pinned).name
    except ValueError:
        return pinned


def _guard(collect: Callable[[], Any]) -> Any:
    try:
        return collect()
    except Exception as error:  # noqa: BLE001 - the report must appear whatever is broken
        return {"error": f"{type(error).__name__}: {error}"}


def examine_hal() -> Section:
    """Version, place and owner of the package named hal that Python finds, and other distributions that claim the name."""
    import hal

    owners = importlib.metadata.packages_distributions()
    return {
        "version": importlib.metadata.version("hal-attention"),
        "location": str(Path(hal.__path__[0]).resolve()),
        "distributions": sorted(set(owners.get("hal", ()))),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "warnings": list(find_shared(["hal"], owners)),
    }


def examine_torch() -> Section:
    """Version and build of torch, read from its files: importing it is what may fail on a broken machine."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return {"version": None, "build": {}, "location": None}
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    location = Path(spec.origin).parent if spec is not None and spec.origin else None
    build: Section = {}
    if location is not None and (location / "version.py").is_file():
        stated = runpy.run_path(str(location / "version.py"))
        build = {name: value for name, value in stated.items() if name.islower() and not name.startswith("_")}
        build = {name: value for name, value in build.items() if value is None or isinstance(value, (str, bool))}
    return {"version": version, "build": build, "location": str(location)}


def examine_plugins() -> list[Section]:
    """Every entry point that brings backends, whether HAL_PLUGINS allows it, and how it failed to load."""
    failures = broken_plugins()
    return [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "target": plugin.target,
            "is_allowed": plugin.is_allowed,
            "failure": failures.get(str(plugin)),
        }
        for plugin in list_plugins()
    ]


def examine_environment() -> Section:
    """hal's variables, those that hide devices, and names that look like hal's and are not."""
    filters = {name: value for name, value in sorted(os.environ.items()) if name.endswith(DEVICE_FILTERS)}
    visible = [name for name in filters if name.endswith("_VISIBLE_DEVICES")]
    warnings = list(find_mistakes())
    if len(visible) > 1:
        warnings.append(f"{' and '.join(visible)} are all set: where one driver reads both, devices are filtered twice")
    return {
        "hal": {name: {"value": read_variable(name), "meaning": meaning} for name, meaning in VARIABLES.items()},
        "device_filters": filters,
        "other": {name: os.environ[name] for name in OTHER_VARIABLES if name in os.environ},
        "warnings": warnings,
    }


def examine_platforms() -> list[Section]:
    """Each platform's devices and what its probe has to say."""
    return [
        {
            "platform": probe.platform,
            "devices": [{**asdict(device), "target": device.target} for device in probe.devices],
            "findings": list(probe.findings),
        }
        for probe in probe_platforms()
    ]


def examine_libraries() -> list[Section]:
    """Each vendor library: its version, and whether it really loads, tried in a process of its own."""
    return [_examine_library(library) for _, library in sorted(known_libraries().items())]


def _examine_library(library: Library) -> Section:
    for name in library.distributions:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        row: Section = {"name": library.name, "distribution": name, "version": "unknown"}
        try:
            row["version"] = str(found.version or "unknown")
            return {**row, "failure": load_in_subprocess(_import_names(found))}
        except Exception as error:  # noqa: BLE001 - metadata that cannot be read is a finding about this library alone
            return {**row, "failure": describe_error(error)}
    return {"name": library.name, "distribution": library.distributions[0], "version": None, "failure": None}


def _import_names(found: importlib.metadata.Distribution) -> tuple[str, ...]:
    owners = importlib.metadata.packages_distributions()
    name = found.metadata["Name"]
    modules = (package for package, owning in owners.items() if name in owning and not package.startswith("_"))
    # Folders of data count as packages too, under names that no import takes.
    return tuple(module for module in modules if module.isidentifier() and not iskeyword(module))


def examine_backends() -> list[Section]:
    """Each backend: usable on a device of this machine or why not, and a tiny computation where it is.

    reasons, each a Reason or a sentence, say on a usable one why the computation is not for it.
    """
    devices: dict[str, Device] = {}
    for probe in probe_platforms():
        for device in probe.devices:
            devices.setdefault(device.platform, device)
    return [_guard_backend(name, devices.get(cls.platform)) for name, cls in sorted(backends().items())]


def _guard_backend(name: str, device: Device | None) -> Section:
    row: Section = {"name": name, "device": device.target if device else None, "usable": False, "check": None}
    try:
        reasons: tuple[Reason | str, ...] = explain_unusable(name, device)
        if not reasons and device is not None:
            unchecked = explain_unchecked(name, device)
            check = None if unchecked else check_in_subprocess(name, device.target)
            return {**row, "usable": True, "reasons": list(unchecked), "check": check}
    except Exception as error:  # noqa: BLE001 - one broken backend must not hide the others
        reasons = (f"{type(error).__name__}: {error}",)
    return {**row, "reasons": list(reasons)}
