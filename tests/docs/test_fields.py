"""Pages leave out nothing of what they describe: fields of files and declarations, variables, commands, counters."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest
from typer.main import get_command

import hal
from hal.backend import Arch, Backend, Capabilities, Platform
from hal.cli.app import app
from hal.common.backends.registry import backends, platforms
from hal.common.contract.backend import CALLS as KERNEL_CALLS
from hal.common.contract.environment import VARIABLES
from hal.common.contract.reason import CODES
from hal.common.triton.tiles import CALLS, Candidate, Machine
from hal.matrix.ci import SUITES, CiCell
from hal.matrix.fleet import Compiler, PlatformProof

from .helpers.pages import BLOCKS, PAGES, ROOT

DUMMY = ROOT / "tests" / "plugins" / "hal_dummy"
LIMITS = {entry.name for entry in fields(Machine)} - {"arch", "candidates"}


def names(kind: Any) -> list[str]:
    return [entry.name for entry in fields(kind)]


def hooks() -> list[str]:
    """What a backend may override: everything public on the base class."""
    return [name for name in vars(Backend) if not name.startswith("_")]


def counters() -> list[str]:
    """What an Attention counts while it runs."""
    found = {name: value.fget for name, value in vars(hal.Attention).items() if isinstance(value, property)}
    return [name for name, read in found.items() if read is not None and read.__annotations__["return"] == "int"]


def read_tables(page: str) -> dict[str, set[str]]:
    """By the title of its first column: the names in code that the first column of a page's tables has."""
    found: dict[str, set[str]] = {}
    title = ""
    before = ""
    for line in PAGES[page].read_text(encoding="utf-8").splitlines():
        cell = line.split("|")[1].strip() if line.startswith("|") else ""
        if cell and not before:
            title = cell
        elif cell:
            found.setdefault(title, set()).update(re.match(r"[\w ]+", span)[0] for span in re.findall(r"`([^`]+)`", cell))
        before = cell
    return found


DESCRIBED: dict[str, tuple[str, str, Iterable[str]]] = {
    "archs": ("docs/platform.md", "column of `archs.toml`", names(Arch)),
    "limits": ("docs/platform.md", "column of `limits`", LIMITS),
    "candidates": ("docs/platform.md", "column of a candidate", names(Candidate)),
    "capabilities": ("docs/platform.md", "field of `Capabilities`", names(Capabilities)),
    "platform": ("docs/platform.md", "field of `Platform`", names(Platform)),
    "matrix": (
        "docs/platform.md",
        "column of `matrix/NAME.toml`",
        (set(names(PlatformProof)) - {"platform", "spills"}) | {"hole", "spill"},
    ),
    "cells": ("docs/platform.md", "column of a cell", set(names(CiCell)) - {"name", "platform"}),
    "backend": ("docs/platform.md", "of the class", [name for name in hooks() if not callable(getattr(Backend, name))]),
    "hooks": (
        "docs/platform.md",
        "method",
        [name for name in hooks() if callable(getattr(Backend, name)) and name not in KERNEL_CALLS],
    ),
    "counters": ("docs/engine.md", "counter of an `Attention`", set(counters()) - {"compile_misses"}),
    "specs": ("docs/engine.md", "of a spec", ["key", "part", "shape", "page_bytes", "group", "scale_shapes"]),
    "variables": ("docs/explain.md", "variable", VARIABLES),
    "commands": ("docs/explain.md", "command", [f"hal {name}" for name in get_command(app).commands]),
}


@pytest.mark.parametrize("what", DESCRIBED)
def test_a_table_names_every_one(what: str) -> None:
    page, title, wanted = DESCRIBED[what]
    told = read_tables(page)[title]
    assert [name for name in wanted if not any(f"{each} ".startswith(f"{name} ") for each in told)] == []


def test_the_page_of_platforms_names_every_call_kernel_reason_and_suite() -> None:
    spans = re.findall(r"`([\w-]+)`", PAGES["docs/platform.md"].read_text(encoding="utf-8"))
    assert {*KERNEL_CALLS, *CALLS, *CODES, *SUITES, *names(Compiler)} <= set(spans)


def test_the_page_of_platforms_shows_the_package_as_it_is() -> None:
    shown = {block.file: block.text.partition("\n")[2] for block in BLOCKS if block.page == "docs/platform.md" and block.file}
    kept = {path.relative_to(DUMMY).as_posix(): path.read_text() for path in DUMMY.rglob("*") if path.suffix in (".py", ".toml")}
    assert {name: text for name, text in shown.items() if name in kept} == kept


def test_the_launch_file_that_is_shown_could_be_read() -> None:
    texts = [tomllib.loads(block.text) for block in BLOCKS if block.language == "toml" and "limits" in tomllib.loads(block.text)]
    (shown,) = texts
    limits = shown.pop("limits")
    assert set(limits["default"]) == LIMITS
    assert all(set(row) <= LIMITS for row in limits.values())
    assert set(shown) == set(CALLS)
    assert all(Candidate(**row) for rows in shown.values() for row in rows)


FEATURES = {
    "grouped-query, sliding-window attention": lambda declared: "attention" in declared.families,
    "MLA and sparse MLA (DeepSeek-V3.2, GLM)": lambda declared: {"mla", "sparse_mla"} <= declared.families,
    "compressed attention (DeepSeek-V4)": lambda declared: "compressed" in declared.families,
    "quantised caches": lambda declared: any("fp8" in name for layouts in declared.kv_layouts.values() for name in layouts),
    "decode-context ranks": lambda declared: declared.dcp and declared.key_ranges,
    "graph capture": lambda declared: declared.graphs != "never",
}


def test_the_status_table_is_what_backends_declare() -> None:
    rows = [re.split(r" *\| *", line)[1:-1] for line in PAGES["README.md"].read_text().splitlines() if line.startswith("|")]
    columns = [{"CPU": "cpu", "CUDA": "cuda", "ROCm": "rocm", "Intel XPU": "xpu"}[name] for name in rows[0][1:]]
    table = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows[2:]}
    for feature, has in FEATURES.items():
        for name, platform in platforms().items():
            declared = [cls.capabilities for cls in backends().values() if cls.platform == name and cls.capabilities]
            state = "runs" if platform.always_present else "emulated"
            assert table[feature][name] == (state if any(map(has, declared)) else "not written"), (feature, name)
