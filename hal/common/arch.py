"""The arch table: limits of every accelerator hal knows, read from each platform's archs.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files

from .errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """One row of the table. Sizes in bytes; None where the vendor publishes no figure."""

    name: str
    shared_memory_bytes: int | None
    registers_per_thread: int | None
    warp_size: int
    fp8: str | None
    matrix: str | None
    aliases: tuple[str, ...] = ()
    sample_part: str = ""
    bf16_tflops: float | None = None
    bandwidth_gb_s: float | None = None
    note: str = ""


def read_archs(package: str) -> tuple[Arch, ...]:
    """The archs of a platform package, in the order of its archs.toml; ValueError for an unknown column."""
    data = tomllib.loads(files(package).joinpath("archs.toml").read_text(encoding="utf-8"))
    known = {field.name for field in fields(Arch)}
    archs = []
    for name, row in data["arch"].items():
        unknown = row.keys() - known
        if unknown:
            raise InputError(f"{package}/archs.toml: arch {name} has unknown columns {sorted(unknown)}; known: {sorted(known)}")
        row = {"shared_memory_bytes": None, "registers_per_thread": None, "fp8": None, "matrix": None, **row}
        row["aliases"] = tuple(row.get("aliases", ()))
        archs.append(Arch(name=name, **row))
    return tuple(archs)
