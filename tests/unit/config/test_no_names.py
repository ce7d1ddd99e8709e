"""No line of the library decides by the name of an architecture or a model type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMES = ("architecture", "model_type")
FILES = sorted(
    path
    for folder in ("config", "hal", "models", "matrix")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)


def named(node: ast.AST) -> bool:
    """Whether an expression is, or reads, an architecture or a model type."""
    for part in ast.walk(node):
        text = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            text = part.value
        if any(name in text for name in NAMES):
            return True
    return False


def strings(node: ast.AST) -> bool:
    """Whether an expression is a string, or a collection that holds one."""
    values = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return any(isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value for value in values)


def asks_for_an_end(function: ast.expr) -> bool:
    """Whether a called method tests how the name of a model begins or ends."""
    return isinstance(function, ast.Attribute) and function.attr in ("startswith", "endswith") and named(function.value)


def comparisons(tree: ast.AST) -> Iterator[int]:
    """Lines where a name of a model is compared with a string, matched against one, or asked for its beginning or end."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(named(side) and not strings(side) for side in sides) and any(strings(side) for side in sides):
                yield node.lineno
        elif (isinstance(node, ast.Match) and named(node.subject)) or (isinstance(node, ast.Call) and asks_for_an_end(node.func)):
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("if config.model_type == 'llama': pass", 1),
        ("x = config['model_type'] in ('a', 'b')", 1),
        ("x = 'Llama' in architectures[0]", 1),
        ("x = model_type.startswith('gpt')", 1),
        ("match model_type:\n case 'a': pass", 1),
        ("x = name == 'model_type'", 0),
        ("x = config.model_type", 0),
    ],
)
def test_the_check_counts_every_comparison_with_a_name(code: str, count: int) -> None:
    assert len(list(comparisons(ast.parse(code)))) == count


def test_no_model_name_is_compared() -> None:
    assert len(FILES) > 20
    found = {
        f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in comparisons(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()
