"""The models that the support table speaks of: real configs, cut to the fields that attention is read from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from hal.config import ModelShape, read_shape

_LIST = "models.jsonl"


def listed_models() -> dict[str, ModelShape]:
    """The models of this package's list, by name."""
    text = files(__package__).joinpath(_LIST).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["name"]: read_shape(row["config"]) for row in rows}


def read_models(configs: Sequence[Path]) -> dict[str, ModelShape]:
    """Models by the names of their files, as name_configs() has them."""
    return dict(zip(name_configs(configs), map(read_shape, configs), strict=True))


def name_configs(configs: Sequence[Path]) -> Iterator[str]:
    """A file by its stem, a folder or its config.json by the folder's name; by the whole path where two would be alike."""
    short = [path.parent.name if path.name == "config.json" else path.stem if path.is_file() else path.name for path in configs]
    for path, name in zip(configs, short, strict=True):
        yield name if name and short.count(name) == 1 else str(path)
