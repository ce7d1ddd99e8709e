"""What kind of folder a path is, where it is not one that hal.models loads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .errors import CheckpointError, listed

OTHER_RELEASES = {
    "model_index.json": "a diffusion pipeline; give one of its parts' folders, if that is a language model",
    "params.json": "a release in its maker's own format; convert it to transformers' format first",
    "adapter_model.bin": "an adapter; merge it into its base model and save that",
    "adapter_model.safetensors": "an adapter; merge it into its base model and save that",
}
"""Files that tell folders of other kinds apart: diffusers' pipelines, Meta's and Mistral's own releases, PEFT adapters."""


def check_folder(folder: Path) -> None:
    """Raise CheckpointError that says what the path is instead of a folder with a config.json."""
    if not folder.is_dir():
        what = "is a file, and is not a folder" if folder.is_file() else "is not a folder"
        raise CheckpointError(f"{folder} {what}; give the folder that holds config.json and the .safetensors files")
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be listed: {error.strerror or error}; check its owner and mode") from error
    if "config.json" in names:
        config = folder / "config.json"
        if os.path.exists(config) and not os.path.isfile(config):
            raise CheckpointError(f"{config} is a folder, a pipe or a device, and is not a file; copy it again")
        return
    if not names:
        raise CheckpointError(f"{folder} is empty, so it has no config.json; download the model again")
    if "adapter_config.json" in names:
        raise CheckpointError(
            f"{folder} has no config.json and holds an adapter{_name_base(folder)}; merge it into that and save the whole"
        )
    other = next((what for name, what in OTHER_RELEASES.items() if name in names), None)
    if other is not None:
        raise CheckpointError(f"{folder} has no config.json and is {other}")
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        raise CheckpointError(f"{folder} has no config.json, only {listed(gguf)}; GGUF is not read, take the safetensors release")
    raise CheckpointError(f"{folder} has no config.json; it holds {listed(names)}")


def _name_base(folder: Path) -> str:
    try:
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return " of a base model"
    return f" of {str(base)[:200]}"
