"""No file leads back to itself: not by an import, one for types alone, one inside a function, or a literal import_module()."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("config", "models", "matrix")
FACADES = {
    # Anyone may name a device, and the archs that there are stand in the registry.
    ("hal.common.contract.device", "hal.common.backends.targets"),
    # A plan is a value; running it needs torch, which is imported there and then.
    ("hal.common.contract.plan", "hal.common.running.opening"),
}
"""The edges that look up, each lazy: what a value offers as a method although other floors do it."""


def list_modules(root: Path) -> dict[str, Path]:
    """Every module of hal by name, packages by their own."""
    folders = [(root / "hal", "hal"), *((root / name, f"hal.{name}") for name in LINKED)]
    modules = {}
    for folder, package in folders:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[0] in LINKED and package == "hal":
                continue
            modules[".".join([package, *parts]).removesuffix(".__init__")] = path
    return modules


def read_imports(name: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Modules of hal that a file names in an import statement anywhere, or in a literal import_module()."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for each in node.names:
                inner = f"{base}.{each.name}"
                yield inner if inner in modules else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                named = str(node.args[0].value)
                yield resolve_name(named, package) if named.startswith(".") else named


def read_graph(root: Path) -> dict[str, set[str]]:
    """What each file names of hal."""
    modules = list_modules(root)
    return {
        name: {each for each in read_imports(name, path, modules) if each in modules and each != name}
        for name, path in modules.items()
    }


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Files that lead to each other, largest circle first."""
    reached = {name: _reach(graph, name) for name in graph}
    circles = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted((list(circle) for circle in circles if len(circle) > 1), key=len, reverse=True)


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph[name])
    return seen


def test_no_file_leads_back_to_itself_but_by_a_written_facade() -> None:
    graph = read_graph(ROOT)
    assert len(graph) > 100
    for above, below in FACADES:
        graph[above].discard(below)
    circles = find_circles(graph)
    assert not circles, "files that lead to each other:\n" + "\n".join(f"  {', '.join(circle)}" for circle in circles)


@pytest.mark.parametrize(("above", "below"), sorted(FACADES))
def test_a_written_facade_is_there_and_imports_nothing_before_it_is_called(above: str, below: str) -> None:
    assert below in read_graph(ROOT)[above]
    code = f"import sys, {above}; sys.exit({below!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        "from hal.second import other",
        "if TYPE_CHECKING:\n    from .second import other",
        "def call():\n    from . import second",
        "def call():\n    return import_module('hal.second')",
        "def call():\n    return importlib.import_module('.second', __package__)",
        "import hal.second",
    ],
)
def test_every_kind_of_import_closes_a_circle(tmp_path: Path, line: str) -> None:
    (tmp_path / "hal").mkdir()
    (tmp_path / "hal" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "hal" / "first.py").write_text(line, encoding="utf-8")
    (tmp_path / "hal" / "second.py").write_text("from .first import one\n", encoding="utf-8")
    assert find_circles(read_graph(tmp_path)) == [["hal.first", "hal.second"]]
