"""README, the pages of docs, examples and the platform from outside import what is public, and nothing else of hal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import hal

ROOT = Path(__file__).parents[2]
PUBLIC = frozenset(
    {
        *("hal", "hal.config", "hal.layouts", "hal.pages", "hal.parallel", "hal.convert", "hal.ops", "hal.testing"),
        *("hal.models", "hal.matrix", "hal.backend"),
    }
)
MEASURES_INSIDE = frozenset({"benchmarks/host.py", "benchmarks/rank_loading.py", "benchmarks/sparse_module.py"})
"""Benchmarks that time what has no public name: the judging of one backend, a step of loading, the choice of a form by cost."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
FILES = [
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "tests" / "plugins" / "hal_dummy").rglob("*.py")),
    *(path for path in sorted((ROOT / "benchmarks").glob("*.py")) if path.relative_to(ROOT).as_posix() not in MEASURES_INSIDE),
]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def read_code(path: Path) -> str:
    """A file's code; a page's is that of its Python blocks, one after another."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    blocks = ("\n".join(line.removeprefix(indent) for line in code.split("\n")) for indent, code in BLOCK.findall(text))
    return "\n".join(blocks)


def find_inner(code: str) -> Iterator[str]:
    """What the code names of hal that is not public, each as it is written."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if _is_hal(each.name) and each.name not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_hal(node.module or ""):
            names = [each.name for each in node.names]
            yield from (f"{node.module}: {name}" for name in names if not _is_public(node.module or "", name))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hal":
            if not _is_public("hal", node.attr):
                yield f"hal.{node.attr}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = str(node.args[0].value)
            if called == "import_module" and _is_hal(named) and named not in PUBLIC:
                yield named


def _is_hal(name: str) -> bool:
    return name.partition(".")[0] == "hal"


def _is_public(module: str, name: str) -> bool:
    """Whether a public module lists the name, or the name is such a module."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and (name == "*" or name in import_module(module).__all__)


@pytest.mark.parametrize("path", [*PAGES, *FILES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_public_modules_are_imported(path: Path) -> None:
    assert list(find_inner(read_code(path))) == []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_module_lists_what_it_has(name: str) -> None:
    module = import_module(name)
    assert module.__doc__
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    assert module.__all__


def test_every_public_name_of_hal_can_be_reached_from_it() -> None:
    assert {name.removeprefix("hal.") for name in PUBLIC} - {"hal", "config", "models", "matrix"} <= set(dir(hal))


@pytest.mark.parametrize("name", sorted(MEASURES_INSIDE))
def test_a_benchmark_that_is_let_off_does_look_inside(name: str) -> None:
    assert list(find_inner(read_code(ROOT / name)))


@pytest.mark.parametrize(
    "code",
    [
        "import hal.common",
        "from hal.common.layouts import attention_layout",
        "from hal import common",
        "from hal.layouts import _parse",
        "import hal\nhal.common.registry.backends()",
        "from importlib import import_module\nimport_module('hal.cuda.probe')",
        "if TYPE_CHECKING:\n    from hal.cpu.backend import CPUBackend",
    ],
)
def test_every_way_inside_is_found(code: str) -> None:
    assert len(list(find_inner(code))) == 1
