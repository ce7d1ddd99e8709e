"""Which archs the fleet promises, one file per platform."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any

from hal.common.contract.errors import InputError

PROOFS = ("run", "cubin", "hsaco", "spirv")
ARCH_NAMES = ("number", "name", "properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The part of Triton that compiles for a platform.

    name: its own, in triton.backends. backend: what a GPUTarget calls it. arch_as: how a GPUTarget names an arch: by the
    number in the arch's name, by the name, or by the properties of a device.
    """

    name: str
    backend: str
    arch_as: str
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProof:
    """One platform's promise: its archs, and what shows that kernels are good for them ("run", or a compiled format).

    spills: by arch and kernel, why its loop may keep registers in memory there.
    """

    platform: str
    proof: str
    archs: tuple[str, ...]
    compiler: Compiler | None = None
    spills: Mapping[tuple[str, str], str] = field(default_factory=dict)


def read_fleet() -> tuple[PlatformProof, ...]:
    """Every platform file of this package, by name; ValueError names the file and the entry that does not belong."""
    return tuple(_read(f"{platform}.toml", data) for platform, data in read_tables().items())


def read_tables() -> dict[str, dict[str, Any]]:
    """What each platform's file holds, by platform; ValueError names a file that is no TOML, or says a thing twice."""
    found = sorted(item.name for item in files(__package__).iterdir() if item.name.endswith(".toml"))
    tables = {}
    for name in found:
        try:
            tables[name.removesuffix(".toml")] = tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"matrix/{name} cannot be read: {error}") from error
    return tables


def _read(name: str, data: Mapping[str, Any]) -> PlatformProof:
    if data.keys() - {"compiler", "cell", "hole", "spill"} != {"proof", "archs"}:
        raise ValueError(
            f"matrix/{name} has the keys {sorted(data)}; expected archs, proof, cells, perhaps compiler, holes and spills"
        )
    if data["proof"] not in PROOFS:
        raise ValueError(f"matrix/{name}: proof is {data['proof']!r}; expected one of {', '.join(PROOFS)}")
    if ("compiler" in data) == (data["proof"] == "run"):
        raise ValueError(f"matrix/{name}: the proof {data['proof']!r} needs {'no' if 'compiler' in data else 'a'} compiler")
    compiler = _read_compiler(name, data["compiler"]) if "compiler" in data else None
    platform = name.removesuffix(".toml")
    spills = dict(_read_spill(name, row, data["archs"]) for row in data.get("spill", ()))
    return PlatformProof(platform=platform, proof=data["proof"], archs=tuple(data["archs"]), compiler=compiler, spills=spills)


def _read_spill(name: str, row: Mapping[str, str], archs: Sequence[str]) -> tuple[tuple[str, str], str]:
    if row.keys() != {"arch", "kernel", "reason"} or row["arch"] not in archs or not row["reason"]:
        raise ValueError(f"matrix/{name}: a spill is {dict(row)}; expected an arch of {', '.join(archs)}, a kernel and a reason")
    return (row["arch"], row["kernel"]), row["reason"]


def _read_compiler(name: str, data: Mapping[str, object]) -> Compiler:
    unknown = data.keys() - {entry.name for entry in fields(Compiler)}
    if unknown or data.get("arch_as") not in ARCH_NAMES:
        raise ValueError(
            f"matrix/{name}: compiler has the keys {sorted(data)} with arch_as {data.get('arch_as')!r}; expected name, backend, "
            f"perhaps properties, and arch_as as one of {', '.join(ARCH_NAMES)}"
        )
    return Compiler(**data)  # type: ignore[arg-type]
