"""What the project shows to others, pages, examples and a plugin, imports public names alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .pages import BLOCKS, ROOT

PUBLIC = {"hal"} | {
    f"hal.{name}"
    for name in ("backend", "config", "convert", "layouts", "matrix", "models", "ops", "pages", "parallel", "testing")
}
SHOWN = {
    **{
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("examples", "tests/plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
    },
    **{block.id: block.text for block in BLOCKS if block.language == "python"},
}


def imported(text: str) -> Iterator[str]:
    """The modules of hal that a program imports, or reaches through hal itself."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "hal")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hal":
            yield node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hal":
            yield from ["hal.common"] * (node.attr == "common")


@pytest.mark.parametrize("name", SHOWN)
def test_a_program_that_others_read_imports_public_names(name: str) -> None:
    assert set(imported(SHOWN[name])) <= PUBLIC


def test_an_inner_module_would_be_found() -> None:
    inner = "import hal.cpu\nfrom hal.common.contract.errors import HalError\nhal.common"
    assert set(imported(inner)) - PUBLIC == {"hal.cpu", "hal.common.contract.errors", "hal.common"}
