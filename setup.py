"""The packages of hal, as they are found: those of hal/ and of the folders that pyproject.toml maps into it."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]


def list_packages() -> list[str]:
    """Every mapped folder's package and those in it; a link from one mapped folder to another gives names once."""
    found = set()
    for name, folder in FOLDERS.items():
        found |= {name, *(f"{name}.{inner}" for inner in find_packages(str(ROOT / folder)))}
    return sorted(found)


setup(packages=list_packages())
