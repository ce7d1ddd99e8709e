"""The packages that are found, the import guards, file sizes and paths, held against the disk."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
MAPPED = sorted(name.removeprefix("hal.") for name in SETUPTOOLS["package-dir"] if name != "hal")
LONGEST_FILE = 600
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|farm|root|tmp/[a-z]+|home/[a-z]+)/")


MIN_WORDS = 4
"""Of a test's name: with fewer it says what it looks at, and not what it holds."""


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("without git and a checkout there is no list of tracked files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_setup_finds_a_package_in_every_folder_that_has_files_of_hal() -> None:
    code = "from distutils.core import run_setup; print(*run_setup('setup.py', stop_after='init').packages)"
    found = subprocess.run(
        [sys.executable, "-c", f"import setuptools; {code}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    folders = {
        ".".join((name, *path.parent.relative_to(ROOT / folder).parts))
        for name, folder in SETUPTOOLS["package-dir"].items()
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".toml") and not any(parent.is_symlink() for parent in path.parents)
    }
    assert found.stdout.split() == sorted(folders)


@pytest.mark.parametrize("name", MAPPED)
def test_link_leads_to_the_folder(name: str) -> None:
    link = ROOT / "hal" / name
    if not link.is_symlink():
        pytest.skip("a checkout without symbolic links; only static tools need them")
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("name", MAPPED)
def test_top_level_import_is_refused(name: str) -> None:
    result = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode != 0
    assert f"this folder is the package hal.{name}; import it by that name" in result.stderr


def test_no_python_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in tracked_files() if path.suffix == ".py"}
    assert lengths
    assert {str(path): length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_tracked_file_names_a_machine_path() -> None:
    found = []
    for path in tracked_files():
        text = path.read_bytes()
        if b"\0" not in text and (match := MACHINE_PATH.search(text.decode("utf-8", "replace"))):
            found.append(f"{path.relative_to(ROOT)}: {match.group().strip()}")
    assert found == []


def test_the_page_for_engines_shows_the_example_as_it_is() -> None:
    _, _, code = (ROOT / "examples" / "serve_one_batch.py").read_text().partition('"""\n\n')
    assert f"```python\n{code}```" in (ROOT / "docs" / "engine.md").read_text()


def read_tests() -> dict[Path, ast.Module]:
    """Every module of the tests but those of the platform from outside, which is a package of its own."""
    folder = ROOT / "tests"
    paths = [path for path in tracked_files() if path.suffix == ".py" and path.is_relative_to(folder)]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths if not path.is_relative_to(folder / "plugins")}


def shared_modules(path: Path, tree: ast.Module) -> Iterator[Path]:
    """A file for each module of the tests that another imports, or imports from, whether it is there or not."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.level or (node.module or "").startswith("tests.")):
            continue
        start = path.parents[node.level - 1] if node.level else ROOT
        module = start.joinpath(*(node.module or "").split(".")) if node.module else start
        yield from (module / f"{each.name}.py" for each in node.names) if module.is_dir() else (module.with_suffix(".py"),)


def test_every_test_is_named_once_and_by_a_sentence() -> None:
    names = Counter(
        node.name
        for tree in read_tests().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )
    assert {name for name, count in names.items() if count > 1} == set()
    assert {name for name in names if len(name.split("_")) <= MIN_WORDS} == set()


def test_what_tests_share_is_there_and_lies_in_helpers() -> None:
    shared = [(path, other) for path, tree in read_tests().items() for other in shared_modules(path, tree)]
    assert len(shared) > 100
    wrong = [(path, other) for path, other in shared if not other.is_file() or other.parent.name != "helpers"]
    assert [f"{path.relative_to(ROOT)} imports {other.relative_to(ROOT)}" for path, other in wrong] == []
