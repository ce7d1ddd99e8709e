"""import-linter's contracts, with PLATFORM in them for every platform that pyproject.toml has an entry point of.

A layer or a list of modules names platforms by that word, so that a new one is held to the contracts without an edit.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
WORD = "PLATFORM"


def read_platforms() -> list[str]:
    """Names of the packages in hal that entry points declare as platforms."""
    points = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]["hal.backends"]
    packages = [path.partition(":")[0].rpartition(".")[0] for path in points.values()]
    return sorted(package.removeprefix("hal.") for package in packages)


def name_platforms(options: dict[str, Any]) -> dict[str, Any]:
    """A contract's options with every platform's name where the word stood: in a layer, or as items of a list."""
    platforms = read_platforms()
    return {
        key: [named for item in value for named in _name(key, item, platforms)] if isinstance(value, list) else value
        for key, value in options.items()
    }


def _name(key: str, item: str, platforms: list[str]) -> list[str]:
    if WORD not in item:
        return [item]
    if key == "layers":
        return [item.replace(WORD, " | ".join(platforms))]
    return [item.replace(WORD, platform) for platform in platforms]


class PlatformLayers(LayersContract):
    """Layers, one of which has the platforms beside each other."""

    def __init__(self, name: str, session_options: dict[str, Any], contract_options: dict[str, Any]) -> None:
        super().__init__(name, session_options, name_platforms(contract_options))


class PlatformForbidden(ForbiddenContract):
    """Imports that are forbidden to platforms, or of them."""

    def __init__(self, name: str, session_options: dict[str, Any], contract_options: dict[str, Any]) -> None:
        super().__init__(name, session_options, name_platforms(contract_options))
