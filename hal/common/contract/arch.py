"""The arch table: limits of every accelerator hal knows, read from each platform's archs.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from .errors import InputError

FP8 = ("e4m3fn", "e4m3fnuz")
"""The e4m3 encodings that hardware has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """One row of a platform's archs.toml, [arch.NAME]; of its columns only warp_size has to be there.

    shared_memory_bytes: the most that one block (workgroup) can have. registers_per_thread: 32-bit ones, or entries of the
    register file where that is how the vendor counts. warp_size: threads that run in step. fp8: the e4m3 encoding that its
    matrix unit or its conversions take, "e4m3fn" or "e4m3fnuz". matrix: its matrix instruction, as its kernels are called.
    aliases: other names of the arch. parts: products of that arch as people and management libraries call them, which stand
    for it wherever a target is asked for. sample_part: the part whose figures stand here. bf16_tflops, bandwidth_gb_s: its
    dense matrix and memory rates. note: what limits a kernel there and fits no column. None or empty: not published.
    """

    name: str
    shared_memory_bytes: int | None = None
    registers_per_thread: int | None = None
    warp_size: int
    fp8: str | None = None
    matrix: str | None = None
    aliases: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    sample_part: str = ""
    bf16_tflops: float | None = None
    bandwidth_gb_s: float | None = None
    note: str = ""


COLUMNS: Mapping[str, type | tuple[type, ...]] = MappingProxyType(
    {
        "shared_memory_bytes": int,
        "registers_per_thread": int,
        "warp_size": int,
        "fp8": str,
        "matrix": str,
        "aliases": list,
        "parts": list,
        "sample_part": str,
        "bf16_tflops": (int, float),
        "bandwidth_gb_s": (int, float),
        "note": str,
    }
)
"""What each column of an archs.toml holds."""


def read_archs(package: str) -> tuple[Arch, ...]:
    """The archs of a platform package, in the order of its archs.toml; ValueError names the arch and the column that is wrong."""
    data = tomllib.loads(files(package).joinpath("archs.toml").read_text(encoding="utf-8"))
    rows = data.get("arch")
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise InputError(f"{package}/archs.toml has the tables {sorted(data)}; expected one [arch.NAME] for each arch")
    return tuple(_read_arch(f"{package}/archs.toml: arch {name}", name, row) for name, row in rows.items())


def match_parts(name: str, archs: Iterable[Arch]) -> tuple[Arch, ...]:
    """The archs with the longest part whose words all stand together in a name: "NVIDIA H100 80GB HBM3" has H100's."""
    words = split_words(name)
    runs = {"".join(words[start:stop]) for start in range(len(words)) for stop in range(start + 1, len(words) + 1)}
    keys = [(arch, ["".join(split_words(part)) for part in arch.parts]) for arch in archs]
    lengths = [(arch, max((len(key) for key in known if key in runs), default=0)) for arch, known in keys]
    longest = max((length for _, length in lengths), default=0)
    return tuple(arch for arch, length in lengths if longest and length == longest)


def split_words(name: str) -> list[str]:
    """The words and numbers of a device's name, in small letters and without what stands between them."""
    return re.findall(r"[a-z0-9]+", name.lower())


def _read_arch(where: str, name: str, row: Mapping[str, Any]) -> Arch:
    unknown = row.keys() - COLUMNS.keys()
    if unknown:
        raise InputError(f"{where} has unknown columns {sorted(unknown)}; known: {sorted(COLUMNS)}")
    if "warp_size" not in row:
        raise InputError(f"{where} has no warp_size; write how many threads run in step, 1 where none do")
    for column, value in row.items():
        _check_value(where, column, value)
    columns: dict[str, Any] = {column: tuple(value) if isinstance(value, list) else value for column, value in row.items()}
    return Arch(name=name, **columns)


def _check_value(where: str, column: str, value: object) -> None:
    kind = COLUMNS[column]
    if isinstance(value, bool) or not isinstance(value, kind):
        words = {int: "a whole number", str: "a text", list: "a list of texts"}
        expected = words.get(kind, "a number") if isinstance(kind, type) else "a number"
        raise InputError(f"{where} has {column} {value!r}; expected {expected}")
    if isinstance(value, list) and not all(isinstance(item, str) and item for item in value):
        raise InputError(f"{where} has {column} {value!r}; expected a list of texts")
    if isinstance(value, (int, float)) and value <= 0:
        raise InputError(f"{where} has {column} {value!r}; expected more than 0")
    if column == "fp8" and value not in FP8:
        raise InputError(f"{where} has fp8 {value!r}; expected one of {', '.join(FP8)}")
