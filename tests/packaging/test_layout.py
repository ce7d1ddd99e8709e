"""The packages that are found, the import guards, file sizes and paths, held against the disk."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
MAPPED = sorted(name.removeprefix("hal.") for name in SETUPTOOLS["package-dir"] if name != "hal")
LONGEST_FILE = 600
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|farm|root|tmp/[a-z]+|home/[a-z]+)/")


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
