"""The cells of continuous integration: what is proved on which runner, read from the platforms' files."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any

from hal.common.backends.plugins import OWN_DISTRIBUTION
from hal.common.backends.registry import known_libraries, platforms
from hal.common.contract.errors import InputError
from hal.common.contract.software import version_tuple

from .fleet import read_tables

SELF_HOSTED = "self-hosted"
"""The label that every runner of an owner's own has, and no hosted one."""

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_INDEX = re.compile(r"[a-z]+[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One command; {targets} is the cell's compile targets as options, {platform} its platform. needs_device: runs on one."""

    command: str
    needs_device: bool = False


SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "lint": Suite(command="make --keep-going lint"),
        "package": Suite(command="make package"),
        "check-matrix": Suite(command="make check-matrix"),
        "test": Suite(command="make test"),
        "test-triton": Suite(command="make test-triton"),
        "test-page": Suite(command="make test-page"),
        "test-xpu": Suite(command="make test-xpu"),
        "compile": Suite(command="make compile ARGS='{targets}'"),
        "conformance": Suite(command="python -m hal.testing --platform {platform}", needs_device=True),
    }
)
"""What a cell can run; those of a hosted runner are the Makefile's targets of these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CiCell:
    """One cell, [cell.NAME] of a platform's file.

    runner: the labels that a runner must have. archs: what the suites prove something about. torch_index: the word of the
    index that torch comes from, as its own project names them: "cpu", "cu130". extras: those of hal-attention that are
    installed. software: vendor libraries that the runner is assumed to have, with versions. compile_targets: archs that are
    compiled for without being there.
    """

    name: str
    platform: str
    runner: tuple[str, ...]
    archs: tuple[str, ...]
    torch_index: str
    suites: tuple[str, ...]
    extras: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    compile_targets: tuple[str, ...] = ()
    timeout_minutes: int = 45

    @property
    def needs_hardware(self) -> bool:
        """Whether its runner is its owner's own, which may not be there."""
        return SELF_HOSTED in self.runner

    @property
    def command(self) -> str:
        """The shell's lines, one for each suite."""
        targets = " ".join(f"--device {self.platform}:{arch}" for arch in self.compile_targets)
        return "\n".join(SUITES[name].command.format(targets=targets, platform=self.platform) for name in self.suites)


_COLUMNS = tuple(column for column in fields(CiCell) if column.name not in ("name", "platform"))


def read_cells() -> tuple[CiCell, ...]:
    """Every cell of every platform's file, by platform and in the file's order.

    InputError names the file, the cell and what is wrong with it: an unknown column, arch, suite, extra, library or version,
    a suite on a runner that cannot run it, or a name that two cells have.
    """
    cells: dict[str, CiCell] = {}
    for platform, data in read_tables().items():
        tables = data.get("cell", {})
        if not isinstance(tables, Mapping) or not all(isinstance(row, Mapping) for row in tables.values()):
            raise InputError(f"matrix/{platform}.toml: cell is {tables!r}; expected a table [cell.NAME] for each")
        for name, row in tables.items():
            if name in cells:
                raise InputError(f"two cells are called {name}: in matrix/{cells[name].platform}.toml and matrix/{platform}.toml")
            cells[name] = _read_cell(f"matrix/{platform}.toml: cell {name}", name, platform, row)
    return tuple(cells.values())


def choose_cells(cells: Iterable[CiCell], names: str) -> tuple[CiCell, ...]:
    """The hardware cells of some names, with commas between them; "all" or "none" of them; InputError for an unknown one."""
    known = {cell.name: cell for cell in cells if cell.needs_hardware}
    wanted = [name for name in re.split(r"[,\s]+", names) if name and name != "none"]
    if wanted == ["all"]:
        return tuple(known.values())
    for name in wanted:
        _check_known("the cells that have a runner name", name, known)
    return tuple(known[name] for name in dict.fromkeys(wanted))


def _read_cell(where: str, name: str, platform: str, row: Mapping[str, Any]) -> CiCell:
    unknown = sorted(row.keys() - {column.name for column in _COLUMNS})
    needed = [column.name for column in _COLUMNS if column.default is MISSING and column.default_factory is MISSING]
    missing = [column for column in needed if column not in row]
    if unknown or missing or not _NAME.fullmatch(name):
        faults = [f"has unknown columns {unknown}"] * bool(unknown) + [f"lacks {missing}"] * bool(missing)
        faults = faults or ["is no name of small letters, digits, dots, dashes and underscores"]
        raise InputError(f"{where} {' and '.join(faults)}; columns: {', '.join(column.name for column in _COLUMNS)}")
    for column in _COLUMNS:
        if column.name in row:
            _check_kind(where, column.name, row[column.name])
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    cell = CiCell(name=name, platform=platform, **values)
    _check_cell(where, cell)
    return cell


def _check_kind(where: str, column: str, value: object) -> None:
    kinds: dict[str, tuple[Callable[[object], bool], str]] = {
        "torch_index": (lambda given: isinstance(given, str), "a text"),
        "software": (_are_versions, "a table of versions by library"),
        "timeout_minutes": (lambda given: type(given) is int and given > 0, "a whole number of at least 1"),
    }
    is_right, expected = kinds.get(column, (_are_texts, "a list of texts"))
    if not is_right(value):
        raise InputError(f"{where} has {column} {value!r}; expected {expected}")


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)


def _are_versions(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(version, str) for version in value.values())


def _check_cell(where: str, cell: CiCell) -> None:
    platform = platforms().get(cell.platform)
    archs = [arch.name for arch in platform.archs()] if platform is not None else []
    for column in ("archs", "compile_targets"):
        for arch in getattr(cell, column):
            _check_known(f"{where}: {column} names the arch", arch, archs)
    for suite in cell.suites:
        _check_known(f"{where}: suites names", suite, SUITES)
        if SUITES[suite].needs_device and not cell.needs_hardware:
            raise InputError(f"{where} runs {suite}, which needs a device, on {', '.join(cell.runner)}; expected {SELF_HOSTED}")
    for extra in cell.extras:
        _check_known(f"{where}: extras names", extra, _list_extras())
    for library, version in cell.software.items():
        _check_software(where, library, version)
    if not _INDEX.fullmatch(cell.torch_index):
        raise InputError(f"{where} has torch_index {cell.torch_index!r}; expected an index's word, such as cpu, cu130 or xpu")
    if not (cell.archs and cell.suites and cell.runner):
        raise InputError(f"{where} has an empty list; a cell has archs, suites and the labels of a runner")
    if bool(cell.compile_targets) != ("compile" in cell.suites):
        raise InputError(f"{where} has suites {list(cell.suites)} and compile_targets {list(cell.compile_targets)}; both or none")


def _check_software(where: str, library: str, version: str) -> None:
    known = known_libraries()
    _check_known(f"{where}: software names the library", library, known)
    numbers, least = version_tuple(version), known[library].minimum
    if not numbers or numbers < version_tuple(least):
        raise InputError(f"{where} has {library} {version!r}; expected a version" + (f" of at least {least}" if least else ""))


def _list_extras() -> list[str]:
    return importlib.metadata.metadata(OWN_DISTRIBUTION).get_all("Provides-Extra") or []


def _check_known(what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"{what} {name!r}; {hint}known: {', '.join(names) or 'none'}")
