"""A platform's author holds a backend to the contract with hal's wheel alone: an empty environment, no checkout, one command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("hal", "config", "models", "matrix", "pyproject.toml", "setup.py", "README.md", "LICENSE")
_OFFLINE = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it must succeed, and sees nothing of this process's paths."""
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={"PATH": "", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with two wheels in it, hal's and the dummy platform's; torch is lent to it by path."""
    folder = tmp_path_factory.mktemp("wheels")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, checkout / name)
    shutil.copytree(ROOT / "tests" / "plugins" / "hal_dummy", folder / "hal_dummy")
    wheels = folder / "dist"
    run(sys.executable, "-m", "pip", "wheel", *_OFFLINE, "--wheel-dir", wheels, checkout, folder / "hal_dummy", cwd=folder)
    home = folder / "environment"
    venv.create(home, with_pip=False)
    site = home / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    run(sys.executable, "-m", "pip", "install", *_OFFLINE, "--target", site, *wheels.glob("*.whl"), cwd=folder)
    # A path alone: what stands in .pth files there, such as a checkout that is being edited, is not followed.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def test_hal_is_the_wheels(python: Path, tmp_path: Path) -> None:
    where = run(python, "-c", "import hal, hal_dummy; print(hal.__file__, hal_dummy.__file__)", cwd=tmp_path)
    assert all(Path(path).is_relative_to(python.parents[1]) for path in where.split())


def test_one_command_holds_a_platform_to_the_contract(python: Path, tmp_path: Path) -> None:
    first, *_, last = run(
        python, "-m", "hal.testing", "--backend", "dummy:narrow", "--profile", "small", cwd=tmp_path
    ).splitlines()
    assert first.startswith("dummy:narrow@d1: ")
    assert last == "all passed"


def test_the_wheel_shows_an_index_the_readme_and_the_projects_addresses(python: Path, tmp_path: Path) -> None:
    code = "import json; from importlib.metadata import metadata; print(json.dumps(metadata('hal-attention').json))"
    shown = json.loads(run(python, "-c", code, cwd=tmp_path))
    assert shown["description"].strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert shown["description_content_type"] == "text/markdown"
    urls = dict(line.split(", ") for line in shown["project_url"])
    assert urls == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
