"""What probing any vendor's devices takes: findings, visibility variables, and how torch was built."""

from __future__ import annotations

import importlib.util
import re
import sys
from ast import AnnAssign, Assign, Constant, Name, parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hal.common.contract.quiet import describe_error

Row = dict[str, Any]
Found = tuple[list[Row], list[str]]
Value = TypeVar("Value")

_MOST_DEVICES = 4096
"""More handles than any machine has; a library that counts more answers rubbish, and asking for each would never end."""

_NUMBER = re.compile(r"\s*([+-]?\d+)")


@dataclass(slots=True)
class Findings:
    """Sentences collected on the way; attempt() turns what raises into one."""

    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """One more sentence, unless it is there already."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def attempt(self, what: str, look: Callable[[], Value]) -> Value | None:
        """What `look` returns, or None and a finding where it raises."""
        try:
            return look()
        except Exception as error:  # noqa: BLE001 - vendors' libraries raise anything
            self.add(f"{what}: {describe_error(error)}")
            return None


def check_count(what: str, count: object) -> int:
    """A library's count of handles; RuntimeError where it cannot be one."""
    if not isinstance(count, int) or not 0 <= count <= _MOST_DEVICES:
        raise RuntimeError(f"{what} counts {count!r}")
    return count


def parse_visible(value: str, identifiers: Sequence[str]) -> tuple[list[int], str]:
    """The devices, by index, that a list of indices or identifier prefixes leaves visible, and a remark or "".

    The rules are the drivers': an index is read as C reads it ("1abc" is 1), the first entry that names no device ends the
    list, a mix of indices and identifiers ends it too, a repeated device hides all, and an empty value hides all.
    """
    chosen: list[int] = []
    by_name: bool | None = None
    for entry in value.split(",") if value.strip() else []:
        is_name = not _NUMBER.match(entry)
        if by_name is not None and is_name != by_name:
            return chosen, f"the list {value!r} mixes indices and identifiers, which ends it at {entry.strip()!r}"
        by_name = is_name
        index = _find_device(entry.strip(), identifiers)
        if index is None:
            return chosen, f"the list {value!r} ends at {entry.strip()!r}, which names no device"
        if index in chosen:
            return [], f"the list {value!r} names device {index} twice, which hides all devices"
        chosen.append(index)
    return chosen, "" if chosen else f"the list {value!r} hides all devices"


def _find_device(entry: str, identifiers: Sequence[str]) -> int | None:
    number = _NUMBER.match(entry)
    if number is not None:
        index = int(number.group(1))
        return index if 0 <= index < len(identifiers) else None
    matching = [i for i, identifier in enumerate(identifiers) if entry and identifier.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None


def read_running_torch(device_type: str, built_for: str) -> list[Any] | None:
    """The properties of the devices that torch has opened already, in its own numbering, which visibility has shaped.

    None where torch is not loaded, was built for another vendor or has opened nothing: asking it would create a context.
    """
    torch = sys.modules.get("torch")
    module = getattr(torch, device_type, None)
    if module is None or getattr(getattr(torch, "version", None), built_for, None) is None or not module.is_initialized():
        return None
    return [module.get_device_properties(index) for index in range(module.device_count())]


def tell_unopened(device_type: str, built_for: str, findings: Findings) -> None:
    """A finding where a loaded torch could see devices that nothing else shows: only opening them would tell."""
    version = getattr(sys.modules.get("torch"), "version", None)
    if getattr(version, built_for, None) is not None:
        findings.add(
            f"torch is built for {built_for} and has opened no device: once it has (torch.{device_type}.init()), its devices are "
            "read from there"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """A torch's version, and that of the accelerator runtime it was built for; None where it was built without."""

    version: str
    runtime: str | None = None


def read_torch_build(built_for: str, findings: Findings) -> TorchBuild | None:
    """How the installed torch was built, from its loaded version module or the file itself: it is never imported here.

    built_for: the name under which torch.version holds the runtime's version.
    """
    loaded = getattr(sys.modules.get("torch"), "version", None)
    if loaded is not None:
        return TorchBuild(version=str(getattr(loaded, "__version__", "unknown")), runtime=getattr(loaded, built_for, None))
    spec = findings.attempt("torch", lambda: importlib.util.find_spec("torch"))
    if spec is None or not spec.origin:
        return None
    path = Path(spec.origin).parent / "version.py"
    return findings.attempt("torch's version file", lambda: _parse_version(path, built_for))


def _parse_version(path: Path, built_for: str) -> TorchBuild:
    values: dict[str, Any] = {}
    for statement in parse(path.read_text(encoding="utf-8")).body:
        target = statement.targets[0] if isinstance(statement, Assign) else getattr(statement, "target", None)
        if isinstance(statement, (Assign, AnnAssign)) and isinstance(target, Name) and isinstance(statement.value, Constant):
            values[target.id] = statement.value.value
    return TorchBuild(version=str(values.get("__version__", "unknown")), runtime=values.get(built_for))


def place_rows(rows: Sequence[Row], device_type: str, built_for: str, findings: Findings) -> list[Row]:
    """The rows, each with an index among the visible devices, with torch's names; None, and a finding, where it cannot use them.

    built_for: torch.version's name of the runtime that the devices need.
    """
    build = read_torch_build(built_for, findings) if rows else None
    usable = build is not None and build.runtime is not None
    if rows and not usable:
        have = f"torch {build.version} is built without {built_for}" if build is not None else "torch is not installed"
        findings.add(f"{len(rows)} devices are here and {have}: they can be planned for, not used")
    return [{**row, "torch_device": f"{device_type}:{row['index']}" if usable else None} for row in rows]


def number_rows(rows: Sequence[Row | None]) -> list[Row]:
    """The rows that are known, each with its index among all: torch counts the devices of unknown archs too."""
    return [{**row, "index": index} for index, row in enumerate(rows) if row is not None]
