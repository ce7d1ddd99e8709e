"""Checkpoint folders that are wrong in one stated way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

Tensors = dict[str, torch.Tensor]


def save(module: PreTrainedModel, folder: Path) -> Tensors:
    """Write a module's folder in one file; returns its tensors by checkpoint key."""
    module.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, change: Callable[[Tensors], Tensors | None]) -> Tensors:
    """Change a one-file folder's tensors in place."""
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors)
    tensors = tensors if changed is None else changed
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return tensors


def shard(folder: Path, files: Mapping[str, list[str]], index: Mapping[str, str] | None = None) -> None:
    """Split a one-file folder into named files, with an index (a true one unless given, none for {})."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for file, names in files.items():
        save_file({name: tensors[name].contiguous() for name in names}, folder / file)
    weight_map = {name: file for file, names in files.items() for name in names} if index is None else index
    if weight_map:
        content = json.dumps({"metadata": {}, "weight_map": dict(weight_map)})
        (folder / "model.safetensors.index.json").write_text(content)


def prefixed(strip: str, add: str) -> Callable[[Tensors], Tensors]:
    """A change that swaps the front of every key that starts with `strip`."""
    return lambda tensors: {
        add + name.removeprefix(strip) if name.startswith(strip) else name: tensor for name, tensor in tensors.items()
    }


def halves(folder: Path) -> dict[str, list[str]]:
    """The names of a folder's one file, every other one in each of two files."""
    names = sorted(load_file(folder / "model.safetensors"))
    return {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
